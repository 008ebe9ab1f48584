-- Hub repositories: what `hf` and other clients of the Hugging Face Hub push to and pull from. Their revisions are rows here,
-- with the ids that git gives to the same contents. The contents of their files are Xet files like all others: a file of a
-- revision can be read as long as the repository has a claim to it (file_repos).

CREATE TABLE hub_repos (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- 0: model, 1: dataset, 2: space.
    kind INTEGER NOT NULL CHECK (kind IN (0, 1, 2)),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- `namespace/name` in small letters: names that differ only in case would be one directory on some machines.
    lower_name TEXT NOT NULL,
    -- What claims, quotas and tokens call the repository, such as models/acme/bert. It never changes.
    storage_name TEXT NOT NULL UNIQUE,
    is_private INTEGER NOT NULL CHECK (is_private IN (0, 1)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (kind, lower_name)
) STRICT;

-- Branches and tags by their full names, such as refs/heads/main.
CREATE TABLE hub_refs (
    repo_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    target BLOB NOT NULL CHECK (length(target) = 20),
    PRIMARY KEY (repo_id, name)
) STRICT, WITHOUT ROWID;

-- Commits. The bytes of the git object follow from these columns.
CREATE TABLE hub_commits (
    repo_id INTEGER NOT NULL,
    oid BLOB NOT NULL CHECK (length(oid) = 20),
    tree BLOB NOT NULL CHECK (length(tree) = 20),
    parent BLOB CHECK (length(parent) = 20),
    at INTEGER NOT NULL,
    author TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (repo_id, oid)
) STRICT, WITHOUT ROWID;

-- Directories. `entries` is the git tree object without its header.
CREATE TABLE hub_trees (
    repo_id INTEGER NOT NULL,
    oid BLOB NOT NULL CHECK (length(oid) = 20),
    -- When it was last written, in milliseconds since 1970.
    since INTEGER NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (repo_id, oid)
) STRICT, WITHOUT ROWID;

-- Files. `sha256` is NULL for a regular file; for a large one, `oid` is that of its pointer.
CREATE TABLE hub_blobs (
    repo_id INTEGER NOT NULL,
    oid BLOB NOT NULL CHECK (length(oid) = 20),
    since INTEGER NOT NULL,
    -- Length of the file in bytes.
    len INTEGER NOT NULL,
    sha256 BLOB CHECK (length(sha256) = 32),
    -- Hash of the Xet file with the contents.
    file BLOB NOT NULL CHECK (length(file) = 32),
    PRIMARY KEY (repo_id, oid)
) STRICT, WITHOUT ROWID;
