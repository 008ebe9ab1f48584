-- The xorbs that readers see: those that are live or condemned. What reads no more than these says so by this name, and not by
-- the states. SQLite puts the table and the condition in its place, so plans are the same; a statement that writes, or names
-- an index, has the condition itself.
CREATE VIEW visible_xorbs AS SELECT * FROM xorbs WHERE state IN (1, 2);
