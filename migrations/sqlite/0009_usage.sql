-- What each repository has, counted: files, their raw bytes, and the serialized bytes of the distinct xorbs that they refer
-- to. A quota is compared with this in the transaction of a registration, so it is exact and costs one row to read.
--
-- Triggers keep it, and not the verbs: it follows from `file_repos` and `xorb_files` alone, whichever verb writes those
-- (registration, removal, restore, rebuild, repair, compaction), in whatever order, and a verb that forgets it cannot be
-- written. What fires no trigger must not be done to them: INSERT OR REPLACE.

CREATE TABLE repos (
    id           INTEGER PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE, -- as in file_repos
    -- The part of the name before its last slash, within which deduplication works (service::register::domain).
    owner        TEXT    NOT NULL GENERATED ALWAYS AS (CASE
        WHEN instr(name, '/') = 0 OR rtrim(name, replace(name, '/', '')) = '*/' THEN name
        ELSE substr(rtrim(name, replace(name, '/', '')), 1, length(rtrim(name, replace(name, '/', ''))) - 1)
    END) STORED,
    file_count   INTEGER NOT NULL DEFAULT 0 CHECK (file_count >= 0),   -- a row without files goes
    logical_len  INTEGER NOT NULL DEFAULT 0 CHECK (logical_len >= 0),  -- raw bytes of its files
    physical_len INTEGER NOT NULL DEFAULT 0 CHECK (physical_len >= 0)  -- serialized bytes of its xorbs, each once
) STRICT;

CREATE INDEX repos_owner ON repos (owner);

-- How many files of a repository refer to a xorb. It can refer to no xorb that is not there, since files do not either; a
-- foreign key would have to search this whole table whenever a xorb goes.
CREATE TABLE repo_xorbs (
    repo_id    INTEGER NOT NULL REFERENCES repos (id),
    xorb_id    INTEGER NOT NULL,
    file_count INTEGER NOT NULL CHECK (file_count > 0),
    len        INTEGER NOT NULL, -- what the repository was charged for it
    PRIMARY KEY (repo_id, xorb_id)
) STRICT, WITHOUT ROWID;

INSERT INTO repos (name, file_count, logical_len)
SELECT repo, count(*), sum(raw_len) FROM file_repos JOIN files ON files.id = file_id GROUP BY repo;

INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
SELECT repos.id, xorb_id, count(*), coalesce(max(serialized_len), 0)
FROM file_repos JOIN repos ON name = repo JOIN xorb_files USING (file_id) LEFT JOIN xorbs ON xorbs.id = xorb_id
GROUP BY repos.id, xorb_id;

UPDATE repos SET physical_len = (SELECT coalesce(sum(len), 0) FROM repo_xorbs WHERE repo_id = repos.id);

-- CROSS JOIN is how SQLite is told which table comes first: what one file refers to is little, what a repository does is not.

CREATE TRIGGER usage_claim AFTER INSERT ON file_repos BEGIN
    INSERT INTO repos (name) VALUES (NEW.repo) ON CONFLICT (name) DO NOTHING;
    UPDATE repos SET
        file_count = file_count + 1,
        logical_len = logical_len + (SELECT raw_len FROM files WHERE id = NEW.file_id),
        physical_len = physical_len + (
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

CREATE TRIGGER usage_unclaim AFTER DELETE ON file_repos BEGIN
    UPDATE repos SET
        file_count = file_count - 1,
        logical_len = logical_len - (SELECT raw_len FROM files WHERE id = OLD.file_id),
        physical_len = physical_len - (
            SELECT coalesce(sum(len), 0) FROM xorb_files AS mine CROSS JOIN repo_xorbs AS last
                ON last.repo_id = repos.id AND last.xorb_id = mine.xorb_id
            WHERE mine.file_id = OLD.file_id AND last.file_count = 1)
    WHERE name = OLD.repo;
    DELETE FROM repo_xorbs
    WHERE repo_id = (SELECT id FROM repos WHERE name = OLD.repo) AND file_count = 1
        AND xorb_id IN (SELECT xorb_id FROM xorb_files WHERE file_id = OLD.file_id);
    -- Those that are left.
    UPDATE repo_xorbs SET file_count = file_count - 1
    WHERE repo_id = (SELECT id FROM repos WHERE name = OLD.repo)
        AND xorb_id IN (SELECT xorb_id FROM xorb_files WHERE file_id = OLD.file_id);
    DELETE FROM repos WHERE name = OLD.repo AND file_count = 0;
END;

-- While the file is still there to say how long it was; the cascade finds nothing left to do.
CREATE TRIGGER usage_file BEFORE DELETE ON files BEGIN
    DELETE FROM file_repos WHERE file_id = OLD.id;
END;

CREATE TRIGGER usage_refer AFTER INSERT ON xorb_files
WHEN EXISTS (SELECT 1 FROM file_repos WHERE file_id = NEW.file_id) BEGIN
    UPDATE repos SET
        physical_len = physical_len + coalesce((SELECT serialized_len FROM xorbs WHERE id = NEW.xorb_id), 0)
    WHERE name IN (SELECT repo FROM file_repos WHERE file_id = NEW.file_id)
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id AND xorb_id = NEW.xorb_id);
    INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
    SELECT repos.id, NEW.xorb_id, 1, coalesce((SELECT serialized_len FROM xorbs WHERE id = NEW.xorb_id), 0)
    FROM file_repos CROSS JOIN repos ON name = repo WHERE file_id = NEW.file_id
    ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + 1;
END;

CREATE TRIGGER usage_unrefer AFTER DELETE ON xorb_files
WHEN EXISTS (SELECT 1 FROM file_repos WHERE file_id = OLD.file_id) BEGIN
    UPDATE repos SET
        physical_len = physical_len - coalesce((SELECT len FROM repo_xorbs
            WHERE repo_id = repos.id AND xorb_id = OLD.xorb_id AND repo_xorbs.file_count = 1), 0)
    WHERE name IN (SELECT repo FROM file_repos WHERE file_id = OLD.file_id);
    DELETE FROM repo_xorbs
    WHERE xorb_id = OLD.xorb_id AND file_count = 1 AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo WHERE file_id = OLD.file_id);
    UPDATE repo_xorbs SET file_count = file_count - 1
    WHERE xorb_id = OLD.xorb_id AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo WHERE file_id = OLD.file_id);
END;

-- A xorb whose blob is replaced by another serialization of it.
CREATE TRIGGER usage_resize AFTER UPDATE OF serialized_len ON xorbs
WHEN OLD.serialized_len != NEW.serialized_len BEGIN
    UPDATE repos SET
        physical_len = physical_len + NEW.serialized_len - coalesce(
            (SELECT len FROM repo_xorbs WHERE repo_id = repos.id AND xorb_id = NEW.id), NEW.serialized_len)
    WHERE name IN (SELECT repo FROM xorb_files CROSS JOIN file_repos USING (file_id) WHERE xorb_id = NEW.id);
    UPDATE repo_xorbs SET len = NEW.serialized_len
    WHERE xorb_id = NEW.id AND repo_id IN (SELECT repos.id
        FROM xorb_files AS mine CROSS JOIN file_repos USING (file_id) CROSS JOIN repos ON name = repo
        WHERE mine.xorb_id = NEW.id);
END;

-- A row that changes hands would have to be counted, too, and no verb does that.
CREATE TRIGGER usage_claim_stays BEFORE UPDATE OF file_id, repo ON file_repos BEGIN
    SELECT raise(ABORT, 'a claim is deleted and inserted, not moved');
END;

CREATE TRIGGER usage_reference_stays BEFORE UPDATE OF xorb_id, file_id ON xorb_files BEGIN
    SELECT raise(ABORT, 'a reference is deleted and inserted, not moved');
END;
