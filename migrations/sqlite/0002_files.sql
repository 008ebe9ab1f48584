-- Files: what they are made of, who may read them, and what deduplication may say about their xorbs.

-- One row per file, however many repositories have it: a file is its hash. The terms are packed, since they are only
-- ever read as a run; 44 bytes each, so a file of 100 GiB has some 70 KiB of them.
CREATE TABLE files (
    id           INTEGER PRIMARY KEY,
    hash         BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    raw_len      INTEGER NOT NULL CHECK (raw_len >= 0),
    terms        BLOB    NOT NULL CHECK (length(terms) % 44 = 0), -- xorb hash 32, first chunk u32, end u32, raw length u32
    since        INTEGER NOT NULL,                                -- ms since 1970; of the first registration
    sha256       BLOB CHECK (sha256 IS NULL OR length(sha256) = 32),
    sha256_state INTEGER NOT NULL DEFAULT 0 CHECK (sha256_state IN (0, 1, 2, 3)), -- 0 none, 1 claimed, 2 verified, 3 void
    CHECK ((sha256 IS NULL) = (sha256_state = 0))
) STRICT;

-- For hubs that know a file by its sha256; a void claim names nothing.
CREATE INDEX files_sha256 ON files (sha256) WHERE sha256_state IN (1, 2);

-- What the background verification has still to read.
CREATE INDEX files_unverified ON files (id) WHERE sha256_state = 1;

-- Who has registered a file and may therefore read it. '*' is a token for all repositories, or no authentication.
CREATE TABLE file_repos (
    file_id INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    repo    TEXT    NOT NULL,
    PRIMARY KEY (file_id, repo)
) STRICT, WITHOUT ROWID;

-- Which files need a xorb: what keeps it from being collected. By xorb first, since that is the question.
CREATE TABLE xorb_files (
    xorb_id INTEGER NOT NULL REFERENCES xorbs (id),
    file_id INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    PRIMARY KEY (xorb_id, file_id)
) STRICT, WITHOUT ROWID;

-- Within which domain deduplication may mention a xorb, and until when it was promised to stay.
CREATE TABLE xorb_domains (
    xorb_id     INTEGER NOT NULL REFERENCES xorbs (id) ON DELETE CASCADE,
    domain      TEXT    NOT NULL,
    lease_until INTEGER NOT NULL DEFAULT 0, -- ms since 1970
    PRIMARY KEY (xorb_id, domain)
) STRICT, WITHOUT ROWID;

-- Chunks that clients may ask for: one in 1024, and first chunks of files. Only their hashes, so a few per xorb.
CREATE TABLE dedup_chunks (
    chunk_hash BLOB    NOT NULL CHECK (length(chunk_hash) = 32),
    xorb_id    INTEGER NOT NULL REFERENCES xorbs (id) ON DELETE CASCADE,
    PRIMARY KEY (chunk_hash, xorb_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_chunks_xorb ON dedup_chunks (xorb_id);
