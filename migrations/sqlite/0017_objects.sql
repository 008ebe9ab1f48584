-- Objects: the blobs of a xorb. Each has a name that is used once, `<hash>.<incarnation>`, so a shorter serialization can
-- take the place of a longer one while readers of the longer one go on.

-- Which blob is the xorb's. 0 for blobs of older versions, whose name is the hash alone.
ALTER TABLE xorbs ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 0;

-- Names that no row of `xorbs` has and that may have a blob: it is being written, or is to be deleted. Dead is terminal.
CREATE TABLE objects (
    hash        BLOB    NOT NULL CHECK (length(hash) = 32),
    incarnation INTEGER NOT NULL,
    state       INTEGER NOT NULL CHECK (state IN (0, 1)), -- 0 pending, 1 dead
    since       INTEGER NOT NULL,                         -- ms since 1970; of the state
    len         INTEGER NOT NULL,                         -- bytes of the blob, if there is one
    crc64       INTEGER,                                  -- as in xorbs; NULL where no plan was made with it
    layout      BLOB,                                     -- likewise: plans made before the blob was replaced are still served
    replaced_at INTEGER,                                  -- as in xorbs: plans made before that have another description
    PRIMARY KEY (hash, incarnation)
) STRICT, WITHOUT ROWID;

-- What a collection has to delete.
CREATE INDEX objects_since ON objects (since);

-- A trigger keeps it, and not the verbs: a name that a row had is never lost. No client reads a damaged blob.
CREATE TRIGGER objects_superseded AFTER UPDATE OF incarnation ON xorbs WHEN OLD.incarnation != NEW.incarnation BEGIN
    INSERT INTO objects (hash, incarnation, state, since, len, crc64, layout, replaced_at)
    VALUES (OLD.hash, OLD.incarnation, 1, NEW.since, coalesce(OLD.serialized_len, 0),
        iif(OLD.damaged_at IS NULL, OLD.crc64, NULL), iif(OLD.damaged_at IS NULL, OLD.layout, NULL), OLD.replaced_at);
END;
