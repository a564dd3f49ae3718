-- $1 preloaded, $2 seconds between background purges, $3 whether they visit this database, $4 when a purge last found
-- nothing left, $5 since when the oldest ready message is due, $6 its topic, $7 whether there is shared memory, $8 the
-- launcher's process, $9 since when purges are known of.
-- One row per check.
WITH now AS MATERIALIZED (
    SELECT clock_timestamp() AS clock, pg_is_in_recovery() AS standby,
           $1 AND $2 > 0 AND $3 AS visited
), purged AS (
    SELECT coalesce($4, $9) AS at,
           CASE WHEN visited THEN make_interval(secs => 300 + 3 * $2) ELSE interval '1 day' END AS patience
      FROM now
), held AS (
    -- What keeps vacuum from removing finished rows here, the oldest first.
    SELECT *
      FROM (SELECT format('process %s (%s, %s, %s)', pid, usename, coalesce(nullif(application_name, ''), backend_type),
                          coalesce(state, 'running')) AS holder,
                   age(x) AS age, coalesce(xact_start, backend_start) AS since,
                   format('SELECT pg_terminate_backend(%s)', pid) AS cure
              FROM pg_stat_activity, LATERAL unnest(ARRAY[backend_xmin, backend_xid]) AS x
             WHERE x IS NOT NULL AND pid <> pg_backend_pid() AND backend_type <> 'walsender'
               AND (datname = current_database() OR datname IS NULL)
               AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
            UNION ALL
            SELECT format('prepared transaction %L (%s)', gid, owner), age(transaction), prepared,
                   format('COMMIT PREPARED %1$L or ROLLBACK PREPARED %1$L', gid)
              FROM pg_prepared_xacts WHERE database = current_database()
            UNION ALL
            SELECT format('replication slot "%s" (%s)', slot_name, CASE WHEN active THEN 'in use' ELSE 'not in use' END),
                   age(xmin), NULL, format('SELECT pg_drop_replication_slot(%L), if its consumer is gone', slot_name)
              FROM pg_replication_slots WHERE xmin IS NOT NULL
            UNION ALL
            SELECT format('standby "%s" (hot_standby_feedback)', application_name), age(backend_xmin), NULL,
                   'end long queries there'
              FROM pg_stat_replication WHERE backend_xmin IS NOT NULL) AS h
     ORDER BY age DESC
     LIMIT 1
), ours AS (
    SELECT c.oid, c.relname, greatest(age(c.relfrozenxid), age(t.relfrozenxid)) AS xid_age,
           greatest(mxid_age(c.relminmxid), mxid_age(t.relminmxid)) AS mxid_age,
           pg_stat_get_live_tuples(c.oid) AS live, pg_stat_get_dead_tuples(c.oid) AS dead,
           greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)) AS vacuumed
      FROM pg_class AS c
      LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
), paused AS (
    SELECT count(*) AS topics, string_agg(topic, ', ' ORDER BY topic) AS names FROM outbox.topic WHERE paused
), copy AS (
    -- Rows came without the sequence: a restore goes on, or a subscriber follows.
    SELECT (last_value + is_called::int) * 1024 - 1 < coalesce((SELECT max(seq) FROM outbox.envelope), 0) AS behind
      FROM outbox.arrival
)
SELECT 'preload' AS name, $1 OR $2 = 0 AS ok,
       CASE WHEN $1 THEN 'loaded when the server started'
            WHEN $2 = 0 THEN 'not in shared_preload_libraries; only the background purge needs it, and that is off'
            ELSE 'not in shared_preload_libraries, so nothing purges in the background: add outbox there and restart, '
                 'or call outbox.purge() regularly and set outbox.purge_interval_seconds to 0' END AS detail
UNION ALL
SELECT 'shared memory', $7,
       CASE WHEN $7 THEN 'attached'
            ELSE 'none was left: claims start at the beginning, waiting sessions poll, and nothing is counted; '
                 'preload the library, or restart' END
UNION ALL
SELECT 'worker', standby OR $2 = 0 OR (visited AND $8 IS NOT NULL),
       CASE WHEN standby THEN 'starts when this standby is promoted'
            WHEN $2 = 0 THEN 'off: outbox.purge_interval_seconds is 0'
            WHEN NOT $1 THEN 'none without shared_preload_libraries'
            WHEN $8 IS NULL THEN 'the launcher does not run: see the server log'
            WHEN NOT $3 THEN 'does not visit this database: add it to outbox.databases'
            ELSE format('launched by process %s every %s s', $8, $2) END
  FROM now
UNION ALL
SELECT 'last purge', standby OR at IS NULL OR clock - at < patience,
       CASE WHEN standby THEN 'on the primary'
            WHEN at IS NULL THEN 'not known: there is no shared memory'
            WHEN $4 IS NULL THEN format('none has finished since the server started or first heard of this database %s s ago', trunc(extract(epoch FROM clock - at)))
            ELSE format('finished %s s ago', trunc(extract(epoch FROM clock - at))) END
       || CASE WHEN standby OR at IS NULL OR clock - at < patience THEN ''
               ELSE ': look for "outbox purge" in the server log, or call outbox.purge() until it returns 0' END
  FROM now CROSS JOIN purged
UNION ALL
SELECT 'oldest ready', $5 IS NULL OR clock - $5 < interval '5 minutes',
       CASE WHEN $5 IS NULL THEN 'nothing is ready'
            ELSE format('due for %s s in topic "%s"', trunc(extract(epoch FROM clock - $5)), $6) END
       || CASE WHEN clock - $5 >= interval '5 minutes' THEN ': do workers of this topic run, and keep up?' ELSE '' END
  FROM now
UNION ALL
SELECT 'paused', topics = 0,
       CASE WHEN topics = 0 THEN 'no topic' ELSE format('%s: call outbox.resume() for each when it is time', left(names, 1000)) END
  FROM paused
UNION ALL
SELECT 'access', roles IS NULL,
       coalesce('rights wait for roles that do not exist: ' || left(roles, 1000)
                || ': CREATE ROLE and call outbox.purge(), or outbox.revoke_access()', 'every role exists')
  FROM (SELECT string_agg(DISTINCT role, ', ' ORDER BY role) AS roles FROM outbox.access WHERE number IS NULL) AS missing
UNION ALL
SELECT 'xmin horizon', holder IS NULL OR short,
       CASE WHEN holder IS NULL AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
            THEN format('not held by a prepared transaction or slot; GRANT pg_read_all_stats TO %I to see sessions, too', current_user)
            WHEN holder IS NULL THEN 'not held'
            ELSE format('held by %s for %s%s transactions', holder, trunc(extract(epoch FROM clock - since)) || ' s and ', age) END
       || CASE WHEN NOT short THEN format(': tables grow meanwhile. To end it: %s', cure) ELSE '' END
  FROM now
  LEFT JOIN held ON true
 CROSS JOIN LATERAL (SELECT coalesce(clock - since < interval '5 minutes', age < 100000) AS short) AS s
UNION ALL
(SELECT 'dead tuples', dead < 1000000 OR dead < 4 * live,
        format('outbox.%s has %s dead rows beside %s, last vacuum %s', relname, dead, live,
               coalesce(trunc(extract(epoch FROM clock - vacuumed)) || ' s ago', 'never'))
        || CASE WHEN dead < 1000000 OR dead < 4 * live THEN ''
                ELSE format(': see xmin horizon; if nothing holds it, VACUUM outbox.%s', relname) END
   FROM now CROSS JOIN ours
  ORDER BY dead DESC, relname
  LIMIT 1)
UNION ALL
(SELECT 'wraparound', used < 1.5,
        format('outbox.%s has transaction ids %s old and multixact ids %s old, of 2147483648', relname, xid_age, mxid_age)
        || CASE WHEN used < 1.5 THEN '' ELSE format(': VACUUM (FREEZE) outbox.%s, and find out why autovacuum did not', relname) END
   FROM ours
  CROSS JOIN LATERAL (SELECT greatest(
            xid_age / current_setting('autovacuum_freeze_max_age')::float8,
            mxid_age / current_setting('autovacuum_multixact_freeze_max_age')::float8) AS used) AS u
  ORDER BY used DESC, relname
  LIMIT 1)
UNION ALL
SELECT 'message numbers', fits AND used < 0.5,
       CASE WHEN NOT fits THEN 'outbox.arrival was altered, so nothing can be appended: ALTER SEQUENCE outbox.arrival AS bigint '
                               'INCREMENT BY 1 MINVALUE 1 MAXVALUE 1125899906842623 CACHE 1 NO CYCLE'
            WHEN behind THEN 'behind what is stored, as in a copy: the next append skips ahead'
            ELSE format('%s percent used', trunc(used * 100)) END
  FROM pg_sequence
 CROSS JOIN (SELECT last_value / 1125899906842623.0 AS used FROM outbox.arrival) AS a
 CROSS JOIN copy
 CROSS JOIN LATERAL (SELECT (seqtypid, seqincrement, seqmin, seqmax, seqcache, seqcycle)
                          = (20::oid, 1::int8, 1::int8, 1125899906842623, 1::int8, false) AS fits) AS f
 WHERE seqrelid = 'outbox.arrival'::regclass
UNION ALL
SELECT 'half messages', behind OR envelopes + deliveries = 0,
       CASE WHEN behind THEN 'not looked for in a copy'
            WHEN envelopes + deliveries = 0 THEN 'none'
            ELSE format('%s envelopes that have neither delivery nor receipt, %s dead deliveries without an envelope, among the '
                        'last thousand: was a table restored in part, or made unlogged? Purge removes them past their retention',
                        envelopes, deliveries) END
  FROM copy
 CROSS JOIN (
        SELECT count(*) AS envelopes
          FROM (SELECT seq FROM outbox.envelope ORDER BY seq DESC LIMIT 1000) AS e
         WHERE NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.seq = e.seq)
           AND NOT EXISTS (SELECT FROM outbox.receipt AS r
                            WHERE r.first <= e.seq AND r.first > e.seq - 65536 AND r.last >= e.seq
                              AND (r.seqs IS NULL OR e.seq = ANY (r.seqs)))) AS e
 CROSS JOIN (
        SELECT count(*) AS deliveries
          FROM (SELECT seq FROM outbox.delivery WHERE place = 'x' ORDER BY topic, seq LIMIT 1000) AS d
         WHERE NOT EXISTS (SELECT FROM outbox.envelope AS e WHERE e.seq = d.seq)) AS d
UNION ALL
SELECT 'foreign keys', true,
       coalesce('purge keeps the rows that these refer to: '
                || string_agg(format('"%s" of %s to %s', conname, conrelid::regclass, confrelid::regclass), ', ' ORDER BY oid),
                'none that keep messages from purge')
  FROM pg_constraint
 WHERE contype = 'f' AND confdeltype IN ('a', 'r') AND conparentid = 0 AND confrelid IN (SELECT oid FROM ours)
