-- Health: when the bytes of a xorb were last read and found good, and since when they are known to be bad.

-- NULL where nobody has looked since this column was made: those are read first.
ALTER TABLE xorbs ADD COLUMN verified_at INTEGER; -- ms since 1970

-- NULL where the xorb is sound as far as is known. A damaged one keeps its state: what needs it keeps it from being
-- collected, and its hashes are what a heal is compared with.
ALTER TABLE xorbs ADD COLUMN damaged_at INTEGER; -- ms since 1970

-- NULL where the blob is the one that was uploaded first. A heal may put another serialization in its place, with other
-- offsets: what was told of those before is not true any more.
ALTER TABLE xorbs ADD COLUMN replaced_at INTEGER; -- ms since 1970

-- In which order xorbs are verified: the one that was not looked at for longest comes first.
CREATE INDEX xorbs_verified ON xorbs (verified_at) WHERE state IN (1, 2) AND damaged_at IS NULL;

-- Few or none, and counted with every scrape of the metrics.
CREATE INDEX xorbs_damaged ON xorbs (hash) WHERE damaged_at IS NOT NULL;
