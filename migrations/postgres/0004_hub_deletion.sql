-- Hub repositories can be deleted, as in migration 22 of SQLite.

ALTER TABLE hub_repos ADD COLUMN is_deleted BOOLEAN NOT NULL DEFAULT FALSE;

CREATE INDEX hub_repos_deleted ON hub_repos (id) WHERE is_deleted;
