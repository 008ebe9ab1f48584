-- Registrations in steps: a registration of many files is written in transactions of a few milliseconds, and one short
-- transaction makes all of it visible.

-- Registrations that are not over. Numbers are never used twice: rows keep the number that they were written with.
CREATE TABLE registrations (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    state INTEGER NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 2)) -- 0 being written, 1 abandoned, 2 published
) STRICT;

-- What readers do not see: `registration NOT IN hidden`.
CREATE VIEW hidden AS SELECT id FROM registrations WHERE state < 2;

-- Files that a registration has written, so that they are found again when it is abandoned. Deleted after it is over.
CREATE TABLE registration_files (
    registration INTEGER NOT NULL REFERENCES registrations (id),
    file_id      INTEGER NOT NULL,
    record_len   INTEGER NOT NULL, -- what a file that its repository had before was charged for one more record
    PRIMARY KEY (registration, file_id)
) STRICT, WITHOUT ROWID;

-- The registration that a row was written by: 0 where a verb wrote it at once, and -1 where it did so in a batch, whose usage
-- it has counted itself.
ALTER TABLE files ADD COLUMN registration INTEGER NOT NULL DEFAULT 0;
ALTER TABLE file_repos ADD COLUMN registration INTEGER NOT NULL DEFAULT 0;

-- The same of `has_claimed` and `claim`, where those are newer than the row.
ALTER TABLE file_repos ADD COLUMN claim_registration INTEGER NOT NULL DEFAULT 0;

-- As in migration 14, for rows that are written one by one. A batch counts its files, and all xorbs of theirs, at once.
DROP TRIGGER usage_claim;
CREATE TRIGGER usage_claim AFTER INSERT ON file_repos WHEN NEW.registration = 0 BEGIN
    INSERT INTO repos (name) VALUES (NEW.repo) ON CONFLICT (name) DO NOTHING;
    UPDATE repos SET
        file_count = file_count + 1,
        logical_len = logical_len + (SELECT raw_len FROM files WHERE id = NEW.file_id),
        physical_len = physical_len + NEW.record_len + (
            SELECT coalesce(sum(serialized_len), 0) FROM xorb_files AS mine CROSS JOIN xorbs ON xorbs.id = mine.xorb_id
            WHERE mine.file_id = NEW.file_id AND NOT EXISTS
                (SELECT 1 FROM repo_xorbs AS known WHERE known.repo_id = repos.id AND known.xorb_id = mine.xorb_id))
    WHERE name = NEW.repo;
    INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
    SELECT repos.id, mine.xorb_id, 1, coalesce(serialized_len, 0)
    FROM repos CROSS JOIN xorb_files AS mine LEFT JOIN xorbs ON xorbs.id = mine.xorb_id
    WHERE name = NEW.repo AND mine.file_id = NEW.file_id
    ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + 1;
END;

-- As in migration 10, likewise.
DROP TRIGGER list_claim;
CREATE TRIGGER list_claim AFTER INSERT ON file_repos WHEN NEW.registration = 0 BEGIN
    INSERT INTO repos (name) VALUES (NEW.repo) ON CONFLICT (name) DO NOTHING;
    INSERT INTO repo_files (repo_id, hash, file_id)
    SELECT repos.id, hash, files.id FROM repos, files WHERE name = NEW.repo AND files.id = NEW.file_id;
END;

-- As in migration 2, but not of `sha256_state`: when a claim is found true, only that changes, and writing the index for each
-- file would touch a page at a random place.
DROP INDEX files_sha256;
CREATE INDEX files_sha256 ON files (sha256) WHERE sha256 IS NOT NULL;
