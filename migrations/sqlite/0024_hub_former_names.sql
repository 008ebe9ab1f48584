-- Former names of Hub repositories. Several may have had a name.
CREATE TABLE hub_former_names (
    kind INTEGER NOT NULL CHECK (kind IN (0, 1, 2)),
    -- As in hub_repos.
    lower_name TEXT NOT NULL,
    repo_id INTEGER NOT NULL,
    PRIMARY KEY (kind, lower_name, repo_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX hub_former_names_of_repo ON hub_former_names (repo_id);
