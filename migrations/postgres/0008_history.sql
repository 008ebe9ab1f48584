-- The history of this database when a server had it alone last: its cluster, the timeline of that, and its number there. It
-- changes when a standby is promoted, and when the database is restored to a point in time or to another database.
ALTER TABLE store ADD COLUMN history text COLLATE "C";
