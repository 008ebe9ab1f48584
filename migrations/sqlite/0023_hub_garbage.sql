-- Commits of Hub repositories that no branch or tag needs any more. A sweep enters them here, and a later one deletes them.
CREATE TABLE hub_garbage (
    repo_id INTEGER NOT NULL,
    oid BLOB NOT NULL CHECK (length(oid) = 20),
    -- When the first sweep found that it is not needed, in milliseconds since 1970.
    since INTEGER NOT NULL,
    PRIMARY KEY (repo_id, oid)
) STRICT, WITHOUT ROWID;

-- When the last complete sweep of the repository began; 0: it was never swept.
ALTER TABLE hub_repos ADD COLUMN swept_at INTEGER NOT NULL DEFAULT 0;

-- The number of commits that were added to the repository: a sweep sees by it that there are new ones.
ALTER TABLE hub_repos ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
