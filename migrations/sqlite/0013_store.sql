-- Which store this is the index of, and how far it has come with the store's records. An index that was truncated, put back
-- from a copy, or taken from another store is told apart by this from the one that belongs to the data directory.
CREATE TABLE store (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    store_id    BLOB CHECK (length(store_id) = 16), -- as in the file `store`; NULL until the first start has written both
    last_record INTEGER                             -- number of the last record that was taken; NULL for none
) STRICT;

INSERT INTO store (id) VALUES (1);

-- Records up to `last_record` that a rebuild could not take, such as those whose xorbs are damaged. What their files need is
-- kept until another rebuild can use it.
CREATE TABLE records_left (
    seq INTEGER PRIMARY KEY -- number of the record
) STRICT;
