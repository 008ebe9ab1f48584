-- Commits of Hub repositories that no branch or tag needs any more, as in migration 23 of SQLite.

CREATE TABLE hub_garbage (
    repo_id BIGINT NOT NULL,
    oid BYTEA NOT NULL CHECK (length(oid) = 20),
    since BIGINT NOT NULL,
    PRIMARY KEY (repo_id, oid)
);

ALTER TABLE hub_repos ADD COLUMN swept_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE hub_repos ADD COLUMN generation BIGINT NOT NULL DEFAULT 0;
