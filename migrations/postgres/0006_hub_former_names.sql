-- Former names of Hub repositories, as in migration 24 of SQLite.

CREATE TABLE hub_former_names (
    kind BIGINT NOT NULL CHECK (kind IN (0, 1, 2)),
    lower_name TEXT COLLATE "C" NOT NULL,
    repo_id BIGINT NOT NULL,
    PRIMARY KEY (kind, lower_name, repo_id)
);

CREATE INDEX hub_former_names_of_repo ON hub_former_names (repo_id);
