-- The entries of some keys at one instant, the store's clock, and whether this server is a standby, in one statement, so from one snapshot
-- of the database. $1 namespace, $2 keys, $3 the most bytes of an answer. The first row (its key is null) brings the size, the clock
-- in microseconds and the standby; the entries follow if they are not too large, so that too much is never sent.
WITH found AS MATERIALIZED (
    SELECT e.key, e.incarnation, e.count, e.value
      FROM unnest($2::bytea[]) AS wanted(key)
     CROSS JOIN LATERAL (
               SELECT r.key, r.incarnation, r.count, r.value FROM {schema}.entry r
                WHERE r.namespace = $1 AND r.key = wanted.key OFFSET 0
           ) e
),
size AS MATERIALIZED (
    SELECT coalesce(sum(octet_length(found.key) + octet_length(found.value)), 0)::bigint AS bytes FROM found
)
SELECT NULL::bytea, size.bytes, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL::bytea, pg_is_in_recovery()
  FROM size
UNION ALL
SELECT found.key, found.incarnation, found.count, found.value, NULL::boolean
  FROM found, size
 WHERE size.bytes <= $3
