-- Until when xorbs stay, and what a collection of garbage has to know.

-- A promise with an end of its own is about the xorb, whoever it was given to; what has none is in `since`. The column
-- that it comes from is dropped at once, and not in a later release: a program that knows no collection must not write
-- leases where one that collects does not look for them.
ALTER TABLE xorbs ADD COLUMN lease_until INTEGER NOT NULL DEFAULT 0; -- ms since 1970

UPDATE xorbs SET lease_until = (SELECT max(lease_until) FROM xorb_domains WHERE xorb_id = id)
WHERE EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND lease_until > 0);

ALTER TABLE xorb_domains DROP COLUMN lease_until;

-- All that a plan reads of a xorb, in some 70 bytes: the table has the layouts, of kilobytes, and new columns behind them.
CREATE INDEX xorbs_life ON xorbs (hash, state, since, lease_until, serialized_len);

-- A file that nobody claims any more, and that is removed in steps. Its hash is random by then, so that nobody finds it
-- and the file itself can be registered again.
ALTER TABLE files ADD COLUMN removed_at INTEGER; -- ms since 1970; NULL for files that are there

CREATE INDEX files_removed ON files (id) WHERE removed_at IS NOT NULL;

-- What every process that serves this index must notice: the generation grows whenever something that readers could see
-- is not visible any more, so that what they keep in memory has to be forgotten.
CREATE TABLE visibility (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    generation   INTEGER NOT NULL,
    collected_at INTEGER NOT NULL -- ms since 1970; when garbage was last collected, by the clock of that machine
) STRICT;

INSERT INTO visibility (id, generation, collected_at) VALUES (1, 0, 0);
