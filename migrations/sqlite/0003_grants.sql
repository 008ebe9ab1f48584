-- Upload grants that were committed: what makes a grant good for one upload, also across a restart. A row stays until the
-- grant has expired for good, so there are as many as xorbs of the last hour or so.
CREATE TABLE spent_grants (
    nonce   BLOB    PRIMARY KEY CHECK (length(nonce) = 16),
    expires INTEGER NOT NULL -- ms since 1970
) STRICT, WITHOUT ROWID;

CREATE INDEX spent_grants_expires ON spent_grants (expires);
