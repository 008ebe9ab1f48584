-- Hub repositories are in the registration log, as in migration 21 of SQLite.

ALTER TABLE hub_repos ADD COLUMN is_recorded BOOLEAN NOT NULL DEFAULT FALSE;

CREATE INDEX hub_repos_to_record ON hub_repos (id) WHERE NOT is_recorded;
