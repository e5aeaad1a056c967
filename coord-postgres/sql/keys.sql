-- The keys of a range at one instant, in one statement. $1 namespace, $2 the keys are above this, $3 and from this on, $4 and below this,
-- $5 the most keys. The first row (its key is null) says whether this server is a standby.
SELECT NULL::bytea, pg_is_in_recovery()
UNION ALL
(SELECT e.key, NULL::boolean
   FROM {schema}.entry e
  WHERE e.namespace = $1 AND e.key > $2 AND e.key >= $3 AND e.key < $4
  ORDER BY e.key
  LIMIT $5)
