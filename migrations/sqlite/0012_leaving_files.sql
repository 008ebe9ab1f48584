-- What a large file was charged goes in steps, as its references do: to give all of it back at once keeps others from writing
-- for a microsecond per reference, which is a tenth of a second for the largest. So a file may be removed while it is still
-- claimed. It is listed nowhere and counts no more; its xorbs count until the sweep has taken the references to them.

-- As in migration 9, but a file that was removed before has been counted already, and a repository stays while it is charged.
DROP TRIGGER usage_unclaim;
CREATE TRIGGER usage_unclaim AFTER DELETE ON file_repos BEGIN
    UPDATE repos SET
        file_count = file_count - (SELECT removed_at IS NULL FROM files WHERE id = OLD.file_id),
        logical_len = logical_len - (SELECT iif(removed_at IS NULL, raw_len, 0) FROM files WHERE id = OLD.file_id),
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
    DELETE FROM repos
    WHERE name = OLD.repo AND file_count = 0 AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END;

CREATE TRIGGER usage_leave AFTER UPDATE OF removed_at ON files
WHEN OLD.removed_at IS NULL AND NEW.removed_at IS NOT NULL BEGIN
    UPDATE repos SET file_count = file_count - 1, logical_len = logical_len - OLD.raw_len
    WHERE name IN (SELECT repo FROM file_repos WHERE file_id = OLD.id);
    DELETE FROM repo_files
    WHERE hash = OLD.hash AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo WHERE file_id = OLD.id);
END;

CREATE TRIGGER usage_leave_stays BEFORE UPDATE OF removed_at ON files WHEN OLD.removed_at IS NOT NULL BEGIN
    SELECT raise(ABORT, 'a removed file stays removed');
END;

-- As in migration 10, but a removed file is in no list.
DROP TRIGGER list_hash_stays;
CREATE TRIGGER list_hash_stays BEFORE UPDATE OF hash ON files
WHEN OLD.hash != NEW.hash AND NEW.removed_at IS NULL AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = OLD.id) BEGIN
    SELECT raise(ABORT, 'a file that is claimed keeps its hash');
END;
