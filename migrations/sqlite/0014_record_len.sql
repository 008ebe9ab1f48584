-- What a registration leaves in `shards/` counts for its repository, like the blobs of its files: a file of a million terms is
-- a record of 96 MB, however few bytes the file has.

-- Per claim, since a record goes with the files that it was written for. Bytes, in whole KiB: records of common files are
-- shorter than that, as is the row of the claim.
ALTER TABLE file_repos ADD COLUMN record_len INTEGER NOT NULL DEFAULT 0 CHECK (record_len >= 0);

-- As index::usage::record_len: a file's header and sha256, and each of its terms with its verification hash.
UPDATE file_repos SET record_len = coalesce(
    (SELECT (96 + sum(length(terms)) / 44 * 96) / 1024 * 1024 FROM file_terms WHERE file_terms.file_id = file_repos.file_id), 0);

UPDATE repos SET physical_len = physical_len + total
FROM (SELECT repo, sum(record_len) AS total FROM file_repos GROUP BY repo) AS records WHERE records.repo = repos.name;

-- As in migration 9, with the record.
DROP TRIGGER usage_claim;
CREATE TRIGGER usage_claim AFTER INSERT ON file_repos BEGIN
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

-- As in migration 12, with the record.
DROP TRIGGER usage_unclaim;
CREATE TRIGGER usage_unclaim AFTER DELETE ON file_repos BEGIN
    UPDATE repos SET
        file_count = file_count - (SELECT removed_at IS NULL FROM files WHERE id = OLD.file_id),
        logical_len = logical_len - (SELECT iif(removed_at IS NULL, raw_len, 0) FROM files WHERE id = OLD.file_id),
        physical_len = physical_len - OLD.record_len - (
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
    DELETE FROM repos
    WHERE name = OLD.repo AND file_count = 0 AND physical_len = 0
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END;

-- A further record of a file that the repository has: of a sha256 that it claims later.
CREATE TRIGGER usage_record AFTER UPDATE OF record_len ON file_repos BEGIN
    UPDATE repos SET physical_len = physical_len + NEW.record_len - OLD.record_len WHERE name = NEW.repo;
END;
