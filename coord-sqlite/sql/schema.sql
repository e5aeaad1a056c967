-- Version 1. One row a key. The primary key is an index of its own, so that a listing reads names and no values.
-- No column has a declared conversion that could change foreign data: every read checks the types it finds.
CREATE TABLE coord_entries (
    namespace   TEXT    NOT NULL,
    key         BLOB    NOT NULL,
    incarnation INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    value       BLOB    NOT NULL,
    PRIMARY KEY (namespace, key)
);
