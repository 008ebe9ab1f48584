-- Xorbs: what is stored, where its chunks are, and in which state of its life it is.
--
-- One row per xorb, however many chunks it has: a row per chunk would be sixteen thousand rows per GiB. The states are
-- those of index::XorbState; everything after `ticket` is NULL until the xorb is live.
CREATE TABLE xorbs (
    id             INTEGER PRIMARY KEY,
    hash           BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    state          INTEGER NOT NULL CHECK (state IN (0, 1, 2, 3)), -- 0 staged, 1 live, 2 condemned, 3 deleting
    since          INTEGER NOT NULL,                               -- ms since 1970; of the state or the last upload
    ticket         INTEGER NOT NULL,                               -- which upload staged it; checked when it goes live
    serialized_len INTEGER,                                        -- bytes of the blob
    raw_len        INTEGER,                                        -- bytes of all chunks
    crc64          INTEGER,                                        -- CRC-64/NVME of the blob, as a signed integer
    layout         BLOB,                                           -- format::xorb::Layout::pack, 8 bytes per chunk
    CHECK (state = 0 OR state = 3 OR (serialized_len > 0 AND raw_len > 0 AND crc64 IS NOT NULL AND length(layout) > 0))
) STRICT;

-- What a start has to clear up. Partial, so that it costs nothing while everything is live.
CREATE INDEX xorbs_unfinished ON xorbs (state) WHERE state IN (0, 3);

-- Apart from `xorbs`, so that a range lookup reads the layout (8 bytes per chunk) without the hashes (32 per chunk).
CREATE TABLE xorb_chunks (
    xorb_id INTEGER PRIMARY KEY REFERENCES xorbs (id) ON DELETE CASCADE,
    hashes  BLOB NOT NULL, -- 32 bytes per chunk, in order
    schemes BLOB NOT NULL  -- 1 byte per chunk, in order
) STRICT;

-- Sums over the live and condemned xorbs, kept in the transactions that change them: a scrape of the metrics must not
-- read the whole table.
CREATE TABLE totals (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    xorb_count     INTEGER NOT NULL,
    serialized_len INTEGER NOT NULL,
    raw_len        INTEGER NOT NULL
) STRICT;

INSERT INTO totals (id, xorb_count, serialized_len, raw_len) VALUES (1, 0, 0, 0);
