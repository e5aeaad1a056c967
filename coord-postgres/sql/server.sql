-- What a server must be. One row.
SELECT current_setting('server_version_num')::integer,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       current_setting('fsync')::boolean,
       current_setting('full_page_writes')::boolean,
       current_setting('transaction_isolation'),
       EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1),
       EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname = 'format'),
       EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname <> 'format')
