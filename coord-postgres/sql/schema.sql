-- What a new schema is made of. {schema} stands for its quoted name.

CREATE TABLE IF NOT EXISTS {schema}.format (
    store text NOT NULL PRIMARY KEY CHECK (store = 'coord'),
    version integer NOT NULL
);

-- One row a key that is present. Keys are bytes, so that no collation orders or folds them.
-- While a transaction runs, it keeps rows of count 0 as its hold on keys that are absent; it removes them before it commits.
CREATE TABLE IF NOT EXISTS {schema}.entry (
    namespace text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    incarnation bigint NOT NULL,
    count bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (namespace, key)
) WITH (
    -- Room for the next version of a row on the same page, so that an update touches no index.
    fillfactor = 80,
    -- Heads of tasks and guard keys are written often, and their old versions are to go soon.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500
);

-- Values are often random or compressed already, and never read in part.
ALTER TABLE {schema}.entry ALTER COLUMN value SET STORAGE EXTERNAL;
