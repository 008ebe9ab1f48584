-- Hub repositories are in the registration log. 0: the log does not have the state of the repository, because an earlier
-- version or a restore made it. The next start records it.
ALTER TABLE hub_repos ADD COLUMN is_recorded INTEGER NOT NULL DEFAULT 0 CHECK (is_recorded IN (0, 1));

CREATE INDEX hub_repos_to_record ON hub_repos (id) WHERE NOT is_recorded;
