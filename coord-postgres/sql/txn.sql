-- One transaction in one call: judges the asserts and, if all hold, does the mutations. {schema} stands for the quoted schema.
--
-- It is called as a statement of its own, so its commit is that of the statement. It must run under READ COMMITTED, where each statement
-- inside sees everything that was committed before it began.
--
-- The arrays run in parallel, one place a key, in ascending order of the keys, no key twice:
--   in_keys         every key that is asserted or written
--   in_incarnations the asserted incarnation: null if the key is not asserted, 0 if it must be absent
--   in_counts       the asserted count
--   in_actions      0 leaves the key alone, 1 puts, 2 deletes
--   in_values       the value of a put, else null
-- in_held is how many of the keys may be absent, so that a row of ours has to hold their place: all that are not asserted as present.
-- in_fresh is the incarnation of what comes into being, which no key ever had.
--
-- Answers 1 for applied, 0 for rejected, 2 for "nothing was done; try again with another incarnation".
--
-- Keys are looked up through LATERAL and rows are written by their place in the table, so that the plans are the same whether the table
-- was empty or huge when they were made.
CREATE OR REPLACE FUNCTION {schema}.txn(
    in_namespace text,
    in_keys bytea[],
    in_incarnations bigint[],
    in_counts bigint[],
    in_actions smallint[],
    in_values bytea[],
    in_held integer,
    in_fresh bigint,
    in_durability text,
    in_lock_timeout text
) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $function$
DECLARE
    failed boolean;
    hole boolean := false;
    alien bytea;
    made_rows tid[];
    place_rows tid[];
    old_rows tid[];
    gone_rows tid[];
    made integer := 0;
    places integer := 0;
    held integer;
    locked integer;
    puts integer;
    done integer;
    round integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'coord needs READ COMMITTED' USING ERRCODE = 'CO002';
    END IF;

    -- 1. Without a lock. What does not hold at this instant is rejected, and nothing was written. A check without mutations is
    -- answered here too, for one statement sees one instant.
    IF in_held < cardinality(in_keys) OR 0 = ANY (in_incarnations) THEN
        SELECT bool_or(CASE n.incarnation
                           WHEN 0 THEN e.incarnation IS NOT NULL
                           ELSE e.incarnation IS DISTINCT FROM n.incarnation OR e.count <> n.count
                       END),
               (array_agg(n.key) FILTER (WHERE e.incarnation < 1 OR e.count < 1))[1]
          INTO failed, alien
          FROM unnest(in_keys, in_incarnations, in_counts) AS n(key, incarnation, count)
          LEFT JOIN LATERAL (
                   SELECT r.incarnation, r.count FROM {schema}.entry r
                    WHERE r.namespace = in_namespace AND r.key = n.key OFFSET 0
               ) e ON true
         WHERE n.incarnation IS NOT NULL;
        IF alien IS NOT NULL THEN
            RAISE EXCEPTION 'coord did not write a row' USING ERRCODE = 'CO001', DETAIL = encode(alien, 'escape');
        END IF;
        IF failed THEN
            RETURN 0;
        END IF;
    END IF;
    IF NOT 1 = ANY (in_actions) AND NOT 2 = ANY (in_actions) THEN
        RETURN 1;
    END IF;

    PERFORM set_config('lock_timeout', in_lock_timeout, true);

    LOOP
        -- 2. A row for every key that may be absent, in the order of the keys: what is put with its value, else one of count 0. It
        -- waits for whoever else creates or deletes the key, and then the key is either there or ours.
        IF in_held > 0 THEN
            WITH made AS (
                INSERT INTO {schema}.entry AS e (namespace, key, incarnation, count, value)
                SELECT in_namespace, n.key, in_fresh, CASE n.action WHEN 1 THEN 1 ELSE 0 END, coalesce(n.value, '')
                  FROM unnest(in_keys, in_incarnations, in_actions, in_values) AS n(key, incarnation, action, value)
                 WHERE coalesce(n.incarnation, 0) = 0
                 ORDER BY n.key
                    ON CONFLICT DO NOTHING
                RETURNING e.ctid AS row, e.count
            )
            SELECT count(*), count(*) FILTER (WHERE m.count = 0),
                   array_agg(m.row), array_agg(m.row) FILTER (WHERE m.count = 0)
              INTO made, places, made_rows, place_rows
              FROM made m;
        END IF;

        -- 3. A lock on every row that was there before, one by one in the order of the keys. Who waits here waits for a row that
        -- was committed, so never for one who is still in 2; and each step has one order for all. So nobody waits in a circle.
        SELECT array_agg(e.row ORDER BY n.place),
               array_agg(e.row) FILTER (WHERE n.action = 2 AND e.row IS NOT NULL),
               count(e.row) FILTER (WHERE coalesce(n.incarnation, 0) = 0),
               count(e.row) FILTER (WHERE n.action = 1),
               count(e.row)
          INTO old_rows, gone_rows, held, puts, locked
          FROM unnest(in_keys, in_incarnations, in_actions) WITH ORDINALITY AS n(key, incarnation, action, place)
          LEFT JOIN LATERAL (
                   SELECT r.ctid AS row FROM {schema}.entry r
                    WHERE r.namespace = in_namespace AND r.key = n.key AND r.incarnation <> in_fresh
                      FOR UPDATE
               ) e ON true;

        -- A key that was there in 2 and is gone in 3 is held by nobody.
        hole := made + held < in_held;
        round := round + 1;
        -- Who holds nothing may begin again without leaving the order.
        EXIT WHEN NOT hole OR made + locked > 0 OR round = 16;
    END LOOP;

    -- 4. Everything is held now, and a new statement sees what was committed before the last lock was given.
    IF NOT hole THEN
        SELECT bool_or(CASE n.incarnation
                           WHEN 0 THEN e.incarnation IS NOT NULL AND e.incarnation <> in_fresh
                           ELSE e.incarnation IS DISTINCT FROM n.incarnation OR e.count <> n.count
                       END),
               (array_agg(n.key) FILTER (WHERE e.incarnation <> in_fresh AND (e.incarnation < 1 OR e.count < 1)))[1]
          INTO failed, alien
          FROM unnest(in_keys, in_incarnations, in_counts) AS n(key, incarnation, count)
          LEFT JOIN LATERAL (
                   SELECT r.incarnation, r.count FROM {schema}.entry r
                    WHERE r.namespace = in_namespace AND r.key = n.key OFFSET 0
               ) e ON true
         WHERE n.incarnation IS NOT NULL;
        IF alien IS NOT NULL THEN
            RAISE EXCEPTION 'coord did not write a row' USING ERRCODE = 'CO001', DETAIL = encode(alien, 'escape');
        END IF;
    END IF;
    IF hole OR failed THEN
        -- What was put in 2 goes again. This commits nothing then, and need not wait for a disk or a standby.
        IF made > 0 THEN
            DELETE FROM {schema}.entry WHERE ctid = ANY (made_rows);
            GET DIAGNOSTICS done = ROW_COUNT;
            IF done <> made THEN
                RAISE EXCEPTION 'coord cannot take back its rows' USING ERRCODE = 'XX000';
            END IF;
        END IF;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN CASE WHEN hole THEN 2 ELSE 0 END;
    END IF;

    -- 5. The writes. Rows with an impossible version are left alone, and are then missing from the number of rows.
    done := 0;
    IF puts > 0 THEN
        UPDATE {schema}.entry e
           SET count = e.count + 1, value = n.value
          FROM unnest(old_rows, in_actions, in_values) AS n(row, action, value)
         WHERE n.action = 1 AND e.ctid = n.row AND e.incarnation > 0 AND e.count > 0;
        GET DIAGNOSTICS done = ROW_COUNT;
    END IF;
    IF done <> puts THEN
        RAISE EXCEPTION 'coord did not write a row' USING ERRCODE = 'CO001', DETAIL = 'one of the keys to put';
    END IF;
    IF gone_rows IS NOT NULL OR places > 0 THEN
        DELETE FROM {schema}.entry
         WHERE ctid = ANY (gone_rows || place_rows)
           AND (incarnation = in_fresh OR (incarnation > 0 AND count > 0));
        GET DIAGNOSTICS done = ROW_COUNT;
        IF done <> places + coalesce(cardinality(gone_rows), 0) THEN
            RAISE EXCEPTION 'coord did not write a row' USING ERRCODE = 'CO001', DETAIL = 'one of the keys to delete';
        END IF;
    END IF;

    -- Set until the end of the transaction, so it counts for the commit. A level that waits for more than `on` stays.
    IF in_durability = 'full' THEN
        IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
    ELSIF in_durability = 'local' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    RETURN 1;
END
$function$
