-- Terms apart from files, in runs: a range of a file reads the runs that it touches, and not all terms of a large file.

-- Where a run begins in the file says which one a byte is in. Runs are as long as the writer likes.
CREATE TABLE file_terms (
    file_id INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    start   INTEGER NOT NULL CHECK (start >= 0),                             -- byte of the file where the first term is
    terms   BLOB    NOT NULL CHECK (length(terms) > 0 AND length(terms) % 44 = 0), -- as they were in files
    PRIMARY KEY (file_id, start)
) STRICT;

INSERT INTO file_terms (file_id, start, terms) SELECT id, 0, terms FROM files WHERE length(terms) > 0;

ALTER TABLE files DROP COLUMN terms;

-- Who has claimed the present sha256 of a file: until that is verified, nobody else is told of it.
ALTER TABLE file_repos ADD COLUMN has_claimed INTEGER NOT NULL DEFAULT 0 CHECK (has_claimed IN (0, 1));

UPDATE file_repos SET has_claimed = 1 WHERE file_id IN (SELECT id FROM files WHERE sha256_state = 1);
