-- Hub repositories, as in migration 20 of SQLite.

CREATE TABLE hub_repos (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind BIGINT NOT NULL CHECK (kind IN (0, 1, 2)),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    lower_name TEXT NOT NULL,
    storage_name TEXT NOT NULL UNIQUE,
    is_private BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (kind, lower_name)
);

CREATE TABLE hub_refs (
    repo_id BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    target BYTEA NOT NULL CHECK (length(target) = 20),
    PRIMARY KEY (repo_id, name)
);

CREATE TABLE hub_commits (
    repo_id BIGINT NOT NULL,
    oid BYTEA NOT NULL CHECK (length(oid) = 20),
    tree BYTEA NOT NULL CHECK (length(tree) = 20),
    parent BYTEA CHECK (length(parent) = 20),
    at BIGINT NOT NULL,
    author TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (repo_id, oid)
);

CREATE TABLE hub_trees (
    repo_id BIGINT NOT NULL,
    oid BYTEA NOT NULL CHECK (length(oid) = 20),
    since BIGINT NOT NULL,
    entries BYTEA NOT NULL,
    PRIMARY KEY (repo_id, oid)
);

CREATE TABLE hub_blobs (
    repo_id BIGINT NOT NULL,
    oid BYTEA NOT NULL CHECK (length(oid) = 20),
    since BIGINT NOT NULL,
    len BIGINT NOT NULL,
    sha256 BYTEA CHECK (length(sha256) = 32),
    file BYTEA NOT NULL CHECK (length(file) = 32),
    PRIMARY KEY (repo_id, oid)
);
