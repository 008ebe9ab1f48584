-- Several servers of one store. Each has a session with an advisory lock of its own (own_lock), which is free when the
-- session has ended.

-- Numbers of registration records. A number is used once, whatever becomes of its record.
CREATE SEQUENCE record_numbers AS bigint MINVALUE 0 START 0;

-- Numbers whose record may exist, and whose change was neither made nor refused yet.
CREATE TABLE open_records (
    seq      bigint PRIMARY KEY,
    own_lock bigint NOT NULL
);

-- Which server writes the registration.
ALTER TABLE registrations ADD COLUMN own_lock bigint;

-- The signing keys, revocations and accounts, sealed with a key that is not here.
CREATE TABLE key_ring (
    id      smallint PRIMARY KEY CHECK (id = 1),
    version bigint NOT NULL,
    sealed  bytea NOT NULL
);
