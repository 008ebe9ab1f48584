-- The latest time at which anything was registered, by the clock of that machine. A registration does not touch xorbs that
-- its files keep; whoever takes the last file from a xorb touches it as of this time at least, since the clock may have gone
-- back in between, and clients remember for three weeks what they have registered.
ALTER TABLE visibility ADD COLUMN registered_at INTEGER NOT NULL DEFAULT 0; -- ms since 1970
