-- What no branch or tag of a Hub repository needs: a sweep lists it here, and a later one deletes it.

CREATE TABLE hub_unneeded_commits (
    repo_id INTEGER NOT NULL,
    oid BLOB NOT NULL CHECK (length(oid) = 20),
    -- When a sweep found that it is not needed, in milliseconds since 1970.
    since INTEGER NOT NULL,
    PRIMARY KEY (repo_id, oid)
) STRICT, WITHOUT ROWID;

-- Contents of files to which the claim of the repository will be removed. A registration for the repository deletes the row.
CREATE TABLE hub_unneeded_files (
    repo_id INTEGER NOT NULL,
    file BLOB NOT NULL CHECK (length(file) = 32),
    since INTEGER NOT NULL,
    PRIMARY KEY (repo_id, file)
) STRICT, WITHOUT ROWID;

-- The number of changes of the repository, by which a sweep sees that there was one.
ALTER TABLE hub_repos ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;

-- When the last complete sweep began, and the generation then; 0 and -1: there was none.
ALTER TABLE hub_repos ADD COLUMN swept_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hub_repos ADD COLUMN swept_generation INTEGER NOT NULL DEFAULT -1;
