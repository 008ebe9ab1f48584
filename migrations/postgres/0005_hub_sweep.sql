-- What no branch or tag of a Hub repository needs, as in migration 23 of SQLite.

CREATE TABLE hub_unneeded_commits (
    repo_id BIGINT NOT NULL,
    oid BYTEA NOT NULL CHECK (length(oid) = 20),
    since BIGINT NOT NULL,
    PRIMARY KEY (repo_id, oid)
);

CREATE TABLE hub_unneeded_files (
    repo_id BIGINT NOT NULL,
    file BYTEA NOT NULL CHECK (length(file) = 32),
    since BIGINT NOT NULL,
    PRIMARY KEY (repo_id, file)
);

ALTER TABLE hub_repos ADD COLUMN generation BIGINT NOT NULL DEFAULT 0;
ALTER TABLE hub_repos ADD COLUMN swept_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE hub_repos ADD COLUMN swept_generation BIGINT NOT NULL DEFAULT -1;
