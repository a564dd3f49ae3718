-- One row per stored message: an envelope with its delivery, or else with a receipt. A lease that ran out on the last
-- allowed attempt shows as dead here before the death is recorded. The default of outbox.max_attempts stands here for
-- sessions without the library.
CREATE VIEW outbox.message AS
SELECT e.id,
       e.topic,
       e.type AS event_type,
       e.payload,
       e.occurred_at AS created_at,
       coalesce(d.available_at, e.available_at, e.occurred_at) AS available_at,
       coalesce(d.attempts, r.attempts)::pg_catalog.int4 AS attempts,
       CASE WHEN s.state OPERATOR(pg_catalog.=) 'leased' THEN d.leased_until END AS leased_until,
       CASE WHEN s.state OPERATOR(pg_catalog.=) ANY ('{leased,dead}'::pg_catalog.text[]) THEN d.lease_owner
            ELSE r.lease_owner END AS lease_owner,
       r.delivered_at,
       CASE WHEN s.state OPERATOR(pg_catalog.=) 'dead' THEN coalesce(d.ended_at, d.leased_until) END AS dead_at,
       CASE WHEN s.state OPERATOR(pg_catalog.=) 'dead'
             AND d.place OPERATOR(pg_catalog.<>) 'x'::pg_catalog."char" THEN 'lease expired'
            ELSE d.last_error END AS last_error,
       e.key,
       e.headers,
       s.state
  FROM outbox.envelope AS e
 CROSS JOIN (SELECT pg_catalog.clock_timestamp() AS clock) AS c
  LEFT JOIN outbox.delivery AS d ON d.seq OPERATOR(pg_catalog.=) e.seq
  LEFT JOIN LATERAL (SELECT a.delivered_at, a.attempts, a.lease_owner
          FROM outbox.receipt AS a
         WHERE d.seq IS NULL
           AND a.first OPERATOR(pg_catalog.<=) e.seq
           AND a.first OPERATOR(pg_catalog.>) (e.seq OPERATOR(pg_catalog.-) 65536)
           AND a.last OPERATOR(pg_catalog.>=) e.seq
           AND (a.seqs IS NULL OR e.seq OPERATOR(pg_catalog.=) ANY (a.seqs))
         ORDER BY a.first DESC
         LIMIT 1) AS r ON true
  LEFT JOIN outbox.topic AS t ON t.topic OPERATOR(pg_catalog.=) e.topic
 CROSS JOIN LATERAL (SELECT
        CASE WHEN r.delivered_at IS NOT NULL THEN 'delivered'
             WHEN d.place OPERATOR(pg_catalog.=) 'x'::pg_catalog."char" THEN 'dead'
             WHEN d.leased_until OPERATOR(pg_catalog.>) c.clock THEN 'leased'
             WHEN d.leased_until IS NOT NULL AND d.attempts OPERATOR(pg_catalog.>=) coalesce(
                    t.max_attempts,
                    pg_catalog.current_setting('outbox.max_attempts', true)::pg_catalog.int4,
                    8) THEN 'dead'
             WHEN d.place OPERATOR(pg_catalog.=) 'w'::pg_catalog."char"
                  AND d.available_at OPERATOR(pg_catalog.>) c.clock THEN 'waiting'
             ELSE 'ready' END AS state) AS s
 WHERE d.seq IS NOT NULL OR r.delivered_at IS NOT NULL;

CREATE VIEW outbox.stats AS
SELECT topic, ready, leased, waiting, dead, oldest_ready_seconds, delivered_total, failed_total, stale_total
  FROM outbox.read_stats();

CREATE VIEW outbox.status AS
SELECT name, ok, detail
  FROM outbox.read_status();

COMMENT ON VIEW outbox.message IS
'Every stored message and its state: ready, leased, waiting, delivered or dead. Never shows a token.';
COMMENT ON COLUMN outbox.message.available_at IS
'When the message is, or was last, due; after a wait behind older messages of its key, when its turn came';
COMMENT ON COLUMN outbox.message.attempts IS 'Deliveries started';
COMMENT ON COLUMN outbox.message.leased_until IS 'End of the running lease; NULL if there is none';
COMMENT ON COLUMN outbox.message.lease_owner IS
'The worker that holds the lease, delivered the message, or had it when it died';
COMMENT ON COLUMN outbox.message.last_error IS 'Reason of the last failed attempt, at most 8 kB';
COMMENT ON COLUMN outbox.message.state IS
'ready (due and not leased, although perhaps behind older messages of its key), leased, waiting, delivered or dead';

COMMENT ON VIEW outbox.stats IS
'Per topic: how many messages are in each state now, and what was answered since the server started. Cheap: read it '
'every few seconds. Counts are exact for a topic with fewer messages in a state than 10000 / number of topics (at '
'least 20, at most 10000). Above that, counts are estimates from index entries and samples, and leased may miss '
'older leases. A topic is shown while it has messages to deliver, or if one of its messages was answered since the '
'server started.';
COMMENT ON COLUMN outbox.stats.ready IS
'Claimable now, or once the topic is not paused and the older messages of the key are over';
COMMENT ON COLUMN outbox.stats.oldest_ready_seconds IS
'Whole seconds since the oldest ready message was due; NULL if none is ready';
COMMENT ON COLUMN outbox.stats.delivered_total IS
'Messages completed in committed transactions since the server started; NULL without shared memory, or without room '
'in it for one more topic';
COMMENT ON COLUMN outbox.stats.failed_total IS
'Attempts that were failed or abandoned since the server started; a lease that ran out is not counted';
COMMENT ON COLUMN outbox.stats.stale_total IS
'Answers since the server started that were refused because their lease was not current';
COMMENT ON VIEW outbox.status IS
'Health checks, one a row: version, tables, preload, shared memory, worker, last purge, oldest ready, paused, '
'access, xmin horizon, dead tuples, wraparound, message numbers, half messages, foreign keys, parked. Cheap: read it '
'every few seconds.';
COMMENT ON COLUMN outbox.status.ok IS 'False if an operator should act';
COMMENT ON COLUMN outbox.status.detail IS 'The finding, and what to do if it is not ok';
