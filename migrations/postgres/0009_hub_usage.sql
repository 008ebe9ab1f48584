-- The history of Hub repositories counts for them, as in migration 25 of SQLite.

CREATE FUNCTION usage_history(repo_ids bigint[], lens bigint[]) RETURNS void LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(lens) AS added (len) WHERE added.len > 0) THEN
        INSERT INTO repos (name) SELECT storage_name FROM hub_repos WHERE id = ANY (repo_ids)
        ON CONFLICT (name) DO NOTHING;
    END IF;
    UPDATE repos SET physical_len = physical_len + sums.len
    FROM (SELECT storage_name, sum(changed.len)::bigint AS len FROM unnest(repo_ids, lens) AS changed (repo_id, len)
        JOIN hub_repos ON id = repo_id GROUP BY storage_name) AS sums
    WHERE name = storage_name;
    DELETE FROM repos
    WHERE name IN (SELECT storage_name FROM hub_repos WHERE id = ANY (repo_ids)) AND file_count = 0 AND physical_len = 0
        AND NOT EXISTS (SELECT 1 FROM repo_xorbs WHERE repo_id = repos.id);
END $$;

-- Rows that are inserted count, and no longer when they are deleted.
CREATE FUNCTION usage_tree() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign bigint := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    PERFORM usage_history(array_agg(repo_id), array_agg(sign * length(entries))) FROM changed;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_tree AFTER INSERT ON hub_trees REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION usage_tree();
CREATE TRIGGER usage_untree AFTER DELETE ON hub_trees REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION usage_tree();

CREATE FUNCTION usage_commit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign bigint := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    PERFORM usage_history(array_agg(repo_id), array_agg(sign * (1024 + octet_length(message)))) FROM changed;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_commit AFTER INSERT ON hub_commits REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION usage_commit();
CREATE TRIGGER usage_uncommit AFTER DELETE ON hub_commits REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION usage_commit();

CREATE TRIGGER usage_tree_stays BEFORE UPDATE OF repo_id, entries ON hub_trees
    FOR EACH ROW EXECUTE FUNCTION refuse('a directory is deleted and inserted, not changed');
CREATE TRIGGER usage_commit_stays BEFORE UPDATE OF repo_id, message ON hub_commits
    FOR EACH ROW EXECUTE FUNCTION refuse('a commit is deleted and inserted, not changed');
CREATE TRIGGER usage_name_stays BEFORE UPDATE OF storage_name ON hub_repos
    FOR EACH ROW EXECUTE FUNCTION refuse('a storage name never changes');

CREATE FUNCTION usage_repo_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM hub_trees WHERE repo_id = OLD.id) OR EXISTS (SELECT 1 FROM hub_commits WHERE repo_id = OLD.id) THEN
        RAISE EXCEPTION 'the history of a repository is deleted before the repository'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER usage_repo_stays BEFORE DELETE ON hub_repos FOR EACH ROW EXECUTE FUNCTION usage_repo_stays();

SELECT usage_history(array_agg(repo_id), array_agg(len)) FROM (
    SELECT repo_id, length(entries)::bigint AS len FROM hub_trees
    UNION ALL SELECT repo_id, 1024 + octet_length(message)::bigint FROM hub_commits) AS history;
