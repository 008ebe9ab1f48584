-- The files of each repository in the order of their hashes, as lists show them. Without this a page of a small repository
-- walks along all files that there are, until it has found enough of them.

-- By number and not by name, which would be in every row.
CREATE TABLE repo_files (
    repo_id INTEGER NOT NULL REFERENCES repos (id),
    hash    BLOB    NOT NULL, -- as in files
    file_id INTEGER NOT NULL,
    PRIMARY KEY (repo_id, hash)
) STRICT, WITHOUT ROWID;

INSERT INTO repo_files (repo_id, hash, file_id)
SELECT repos.id, hash, files.id FROM file_repos JOIN repos ON name = repo JOIN files ON files.id = file_id
ORDER BY repos.id, hash;

-- Kept by triggers for the same reasons as usage. Which of two triggers of one kind runs first is not defined, so that each
-- of these makes sure of the row in `repos` by itself: this one enters it, and the other one runs before those that take it.
CREATE TRIGGER list_claim AFTER INSERT ON file_repos BEGIN
    INSERT INTO repos (name) VALUES (NEW.repo) ON CONFLICT (name) DO NOTHING;
    INSERT INTO repo_files (repo_id, hash, file_id)
    SELECT repos.id, hash, files.id FROM repos, files WHERE name = NEW.repo AND files.id = NEW.file_id;
END;

CREATE TRIGGER list_unclaim BEFORE DELETE ON file_repos BEGIN
    DELETE FROM repo_files
    WHERE repo_id = (SELECT id FROM repos WHERE name = OLD.repo) AND hash = (SELECT hash FROM files WHERE id = OLD.file_id);
END;

-- A file that is removed gets another hash when nobody claims it any more, and not before.
CREATE TRIGGER list_hash_stays BEFORE UPDATE OF hash ON files
WHEN OLD.hash != NEW.hash AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = OLD.id) BEGIN
    SELECT raise(ABORT, 'a file that is claimed keeps its hash');
END;
