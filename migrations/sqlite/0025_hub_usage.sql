-- The history of a Hub repository counts for it, like its files: a directory with the bytes of its git object, and a commit
-- with 1 KiB, for its rows and its record, and the bytes of its message. As `index::usage::commit_len`.

CREATE TRIGGER usage_tree AFTER INSERT ON hub_trees BEGIN
    INSERT INTO repos (name) SELECT storage_name FROM hub_repos WHERE id = NEW.repo_id ON CONFLICT (name) DO NOTHING;
    UPDATE repos SET physical_len = physical_len + length(NEW.entries)
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = NEW.repo_id);
END;

CREATE TRIGGER usage_commit AFTER INSERT ON hub_commits BEGIN
    INSERT INTO repos (name) SELECT storage_name FROM hub_repos WHERE id = NEW.repo_id ON CONFLICT (name) DO NOTHING;
    UPDATE repos SET physical_len = physical_len + 1024 + octet_length(NEW.message)
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = NEW.repo_id);
END;

CREATE TRIGGER usage_untree AFTER DELETE ON hub_trees BEGIN
    UPDATE repos SET physical_len = physical_len - length(OLD.entries)
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = OLD.repo_id);
    DELETE FROM repos
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = OLD.repo_id) AND file_count = 0 AND physical_len = 0
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END;

CREATE TRIGGER usage_uncommit AFTER DELETE ON hub_commits BEGIN
    UPDATE repos SET physical_len = physical_len - 1024 - octet_length(OLD.message)
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = OLD.repo_id);
    DELETE FROM repos
    WHERE name = (SELECT storage_name FROM hub_repos WHERE id = OLD.repo_id) AND file_count = 0 AND physical_len = 0
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END;

-- What counts for a repository must not be moved or lost: its rows go before it, and change only in other columns.
CREATE TRIGGER usage_tree_stays BEFORE UPDATE OF repo_id, entries ON hub_trees BEGIN
    SELECT raise(ABORT, 'a directory is deleted and inserted, not changed');
END;

CREATE TRIGGER usage_commit_stays BEFORE UPDATE OF repo_id, message ON hub_commits BEGIN
    SELECT raise(ABORT, 'a commit is deleted and inserted, not changed');
END;

CREATE TRIGGER usage_name_stays BEFORE UPDATE OF id, storage_name ON hub_repos BEGIN
    SELECT raise(ABORT, 'a storage name never changes');
END;

CREATE TRIGGER usage_repo_stays BEFORE DELETE ON hub_repos
WHEN EXISTS (SELECT 1 FROM hub_trees WHERE repo_id = OLD.id) OR EXISTS (SELECT 1 FROM hub_commits WHERE repo_id = OLD.id) BEGIN
    SELECT raise(ABORT, 'the history of a repository is deleted before the repository');
END;

-- What earlier versions have written.
INSERT INTO repos (name) SELECT storage_name FROM hub_repos
WHERE EXISTS (SELECT 1 FROM hub_trees WHERE repo_id = hub_repos.id)
    OR EXISTS (SELECT 1 FROM hub_commits WHERE repo_id = hub_repos.id)
ON CONFLICT (name) DO NOTHING;

UPDATE repos SET physical_len = physical_len + history.len
FROM (SELECT storage_name,
        (SELECT coalesce(sum(length(entries)), 0) FROM hub_trees WHERE repo_id = hub_repos.id)
        + (SELECT coalesce(sum(1024 + octet_length(message)), 0) FROM hub_commits WHERE repo_id = hub_repos.id) AS len
    FROM hub_repos) AS history
WHERE storage_name = repos.name;
