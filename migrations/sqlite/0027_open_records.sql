-- Numbers up to store.last_record whose changes were not made. A start applies the records that still exist.
CREATE TABLE open_records (
    seq INTEGER PRIMARY KEY -- number of the record
) STRICT;
