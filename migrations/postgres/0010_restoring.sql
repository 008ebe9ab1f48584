-- Where the blobs are of a restore into this database that has not ended. Only xorbs are certain then: their names prove them.
ALTER TABLE store ADD COLUMN restoring_to text COLLATE "C";
