-- Hub repositories can be deleted. 1: the repository is invisible and has no branches. Its claims to files and its rows are
-- being deleted, and its name is taken until then.
ALTER TABLE hub_repos ADD COLUMN is_deleted INTEGER NOT NULL DEFAULT 0 CHECK (is_deleted IN (0, 1));

CREATE INDEX hub_repos_deleted ON hub_repos (id) WHERE is_deleted;
