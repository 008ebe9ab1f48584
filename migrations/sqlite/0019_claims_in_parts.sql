-- A file may refer to some 100 000 xorbs. Another repository that registers such a file is charged for each of them, and is
-- credited for each when it removes the file. In one statement that blocks other writers for a tenth of a second. So a claim
-- says which of its xorbs are charged, and charges and credits are made in parts.

-- The claim is charged for the xorbs with smaller ids, and for all of them where this is NULL.
ALTER TABLE file_repos ADD COLUMN charged_below INTEGER;

-- 0: the repository has removed the file. The row stays until all of its xorbs are credited, and has the number of an
-- abandoned registration, so no reader sees it.
ALTER TABLE file_repos ADD COLUMN is_counted INTEGER NOT NULL DEFAULT 1 CHECK (is_counted IN (0, 1));

-- 9223372036854775807 is the largest id that there can be.

-- As in migration 16, for the charged xorbs.
DROP TRIGGER usage_claim;
CREATE TRIGGER usage_claim AFTER INSERT ON file_repos WHEN NEW.registration = 0 BEGIN
    INSERT INTO repos (name) VALUES (NEW.repo) ON CONFLICT (name) DO NOTHING;
    UPDATE repos SET
        file_count = file_count + 1,
        logical_len = logical_len + (SELECT raw_len FROM files WHERE id = NEW.file_id),
        physical_len = physical_len + NEW.record_len + (
            SELECT coalesce(sum(serialized_len), 0) FROM xorb_files AS mine CROSS JOIN xorbs ON xorbs.id = mine.xorb_id
            WHERE mine.file_id = NEW.file_id AND mine.xorb_id < coalesce(NEW.charged_below, 9223372036854775807)
                AND NOT EXISTS
                (SELECT 1 FROM repo_xorbs AS known WHERE known.repo_id = repos.id AND known.xorb_id = mine.xorb_id))
    WHERE name = NEW.repo;
    INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
    SELECT repos.id, mine.xorb_id, 1, coalesce(serialized_len, 0)
    FROM repos CROSS JOIN xorb_files AS mine LEFT JOIN xorbs ON xorbs.id = mine.xorb_id
    WHERE name = NEW.repo AND mine.file_id = NEW.file_id
        AND mine.xorb_id < coalesce(NEW.charged_below, 9223372036854775807)
    ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + 1;
END;

-- The next part is charged.
CREATE TRIGGER usage_charge AFTER UPDATE OF charged_below ON file_repos
WHEN coalesce(NEW.charged_below, 9223372036854775807) > coalesce(OLD.charged_below, 9223372036854775807) BEGIN
    UPDATE repos SET
        physical_len = physical_len + (
            SELECT coalesce(sum(serialized_len), 0) FROM xorb_files AS mine CROSS JOIN xorbs ON xorbs.id = mine.xorb_id
            WHERE mine.file_id = NEW.file_id AND mine.xorb_id >= OLD.charged_below
                AND mine.xorb_id < coalesce(NEW.charged_below, 9223372036854775807) AND NOT EXISTS
                (SELECT 1 FROM repo_xorbs AS known WHERE known.repo_id = repos.id AND known.xorb_id = mine.xorb_id))
    WHERE name = NEW.repo;
    INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
    SELECT repos.id, mine.xorb_id, 1, coalesce(serialized_len, 0)
    FROM repos CROSS JOIN xorb_files AS mine LEFT JOIN xorbs ON xorbs.id = mine.xorb_id
    WHERE name = NEW.repo AND mine.file_id = NEW.file_id AND mine.xorb_id >= OLD.charged_below
        AND mine.xorb_id < coalesce(NEW.charged_below, 9223372036854775807)
    ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + 1;
END;

-- The last part is credited.
CREATE TRIGGER usage_credit AFTER UPDATE OF charged_below ON file_repos
WHEN coalesce(NEW.charged_below, 9223372036854775807) < coalesce(OLD.charged_below, 9223372036854775807) BEGIN
    UPDATE repos SET
        physical_len = physical_len - (
            SELECT coalesce(sum(len), 0) FROM xorb_files AS mine CROSS JOIN repo_xorbs AS last
                ON last.repo_id = repos.id AND last.xorb_id = mine.xorb_id
            WHERE mine.file_id = NEW.file_id AND last.file_count = 1 AND mine.xorb_id >= NEW.charged_below
                AND mine.xorb_id < coalesce(OLD.charged_below, 9223372036854775807))
    WHERE name = NEW.repo;
    DELETE FROM repo_xorbs
    WHERE repo_id = (SELECT id FROM repos WHERE name = NEW.repo) AND file_count = 1 AND xorb_id IN
        (SELECT xorb_id FROM xorb_files WHERE file_id = NEW.file_id AND xorb_id >= NEW.charged_below
            AND xorb_id < coalesce(OLD.charged_below, 9223372036854775807));
    -- Those that are left.
    UPDATE repo_xorbs SET file_count = file_count - 1
    WHERE repo_id = (SELECT id FROM repos WHERE name = NEW.repo) AND xorb_id IN
        (SELECT xorb_id FROM xorb_files WHERE file_id = NEW.file_id AND xorb_id >= NEW.charged_below
            AND xorb_id < coalesce(OLD.charged_below, 9223372036854775807));
END;

-- As in migration 14, for the charged xorbs, and unless the repository has removed the file before.
DROP TRIGGER usage_unclaim;
CREATE TRIGGER usage_unclaim AFTER DELETE ON file_repos BEGIN
    UPDATE repos SET
        file_count = file_count - (SELECT removed_at IS NULL AND OLD.is_counted FROM files WHERE id = OLD.file_id),
        logical_len = logical_len -
            (SELECT iif(removed_at IS NULL AND OLD.is_counted, raw_len, 0) FROM files WHERE id = OLD.file_id),
        physical_len = physical_len - OLD.record_len - (
            SELECT coalesce(sum(len), 0) FROM xorb_files AS mine CROSS JOIN repo_xorbs AS last
                ON last.repo_id = repos.id AND last.xorb_id = mine.xorb_id
            WHERE mine.file_id = OLD.file_id AND last.file_count = 1
                AND mine.xorb_id < coalesce(OLD.charged_below, 9223372036854775807))
    WHERE name = OLD.repo;
    DELETE FROM repo_xorbs
    WHERE repo_id = (SELECT id FROM repos WHERE name = OLD.repo) AND file_count = 1 AND xorb_id IN
        (SELECT xorb_id FROM xorb_files
            WHERE file_id = OLD.file_id AND xorb_id < coalesce(OLD.charged_below, 9223372036854775807));
    -- Those that are left.
    UPDATE repo_xorbs SET file_count = file_count - 1
    WHERE repo_id = (SELECT id FROM repos WHERE name = OLD.repo) AND xorb_id IN
        (SELECT xorb_id FROM xorb_files
            WHERE file_id = OLD.file_id AND xorb_id < coalesce(OLD.charged_below, 9223372036854775807));
    DELETE FROM repos
    WHERE name = OLD.repo AND file_count = 0 AND physical_len = 0
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END;

-- The repository removes the file: at once it has one file less, and lists it no more.
CREATE TRIGGER usage_claim_leaves AFTER UPDATE OF is_counted ON file_repos
WHEN OLD.is_counted = 1 AND NEW.is_counted = 0 BEGIN
    UPDATE repos SET file_count = file_count - 1,
        logical_len = logical_len - (SELECT raw_len FROM files WHERE id = NEW.file_id)
    WHERE name = NEW.repo;
    DELETE FROM repo_files
    WHERE repo_id = (SELECT id FROM repos WHERE name = NEW.repo) AND hash = (SELECT hash FROM files WHERE id = NEW.file_id);
END;

CREATE TRIGGER usage_claim_leaves_stays BEFORE UPDATE OF is_counted ON file_repos
WHEN OLD.is_counted = 0 AND NEW.is_counted = 1 BEGIN
    SELECT raise(ABORT, 'a removed claim stays removed');
END;

-- As in migration 12, for the claims that are counted.
DROP TRIGGER usage_leave;
CREATE TRIGGER usage_leave AFTER UPDATE OF removed_at ON files
WHEN OLD.removed_at IS NULL AND NEW.removed_at IS NOT NULL BEGIN
    UPDATE repos SET file_count = file_count - 1, logical_len = logical_len - OLD.raw_len
    WHERE name IN (SELECT repo FROM file_repos WHERE file_id = OLD.id AND is_counted = 1);
    DELETE FROM repo_files
    WHERE hash = OLD.hash AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo WHERE file_id = OLD.id);
END;

-- As in migration 9, for the claims that are charged for the xorb.
DROP TRIGGER usage_refer;
CREATE TRIGGER usage_refer AFTER INSERT ON xorb_files
WHEN EXISTS (SELECT 1 FROM file_repos WHERE file_id = NEW.file_id) BEGIN
    UPDATE repos SET
        physical_len = physical_len + coalesce((SELECT serialized_len FROM xorbs WHERE id = NEW.xorb_id), 0)
    WHERE name IN (SELECT repo FROM file_repos
            WHERE file_id = NEW.file_id AND NEW.xorb_id < coalesce(charged_below, 9223372036854775807))
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id AND xorb_id = NEW.xorb_id);
    INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len)
    SELECT repos.id, NEW.xorb_id, 1, coalesce((SELECT serialized_len FROM xorbs WHERE id = NEW.xorb_id), 0)
    FROM file_repos CROSS JOIN repos ON name = repo
    WHERE file_id = NEW.file_id AND NEW.xorb_id < coalesce(charged_below, 9223372036854775807)
    ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + 1;
END;

DROP TRIGGER usage_unrefer;
CREATE TRIGGER usage_unrefer AFTER DELETE ON xorb_files
WHEN EXISTS (SELECT 1 FROM file_repos WHERE file_id = OLD.file_id) BEGIN
    UPDATE repos SET
        physical_len = physical_len - coalesce((SELECT len FROM repo_xorbs
            WHERE repo_id = repos.id AND xorb_id = OLD.xorb_id AND repo_xorbs.file_count = 1), 0)
    WHERE name IN (SELECT repo FROM file_repos
        WHERE file_id = OLD.file_id AND OLD.xorb_id < coalesce(charged_below, 9223372036854775807));
    DELETE FROM repo_xorbs
    WHERE xorb_id = OLD.xorb_id AND file_count = 1 AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo
            WHERE file_id = OLD.file_id AND OLD.xorb_id < coalesce(charged_below, 9223372036854775807));
    UPDATE repo_xorbs SET file_count = file_count - 1
    WHERE xorb_id = OLD.xorb_id AND repo_id IN
        (SELECT repos.id FROM file_repos CROSS JOIN repos ON name = repo
            WHERE file_id = OLD.file_id AND OLD.xorb_id < coalesce(charged_below, 9223372036854775807));
END;
