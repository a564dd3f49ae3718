-- stats, read_stats: per topic, how many messages are in which state, and what was answered since the server started.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT * FROM outbox.stats;
-- The same as the states of outbox.message tell.
CREATE TEMP VIEW difference AS
SELECT topic, state, count FROM outbox.stats, LATERAL (VALUES ('ready', ready), ('leased', leased), ('waiting', waiting), ('dead', dead)) AS s (state, count)
 WHERE count <> 0
EXCEPT ALL
SELECT topic, state, count(*) FROM outbox.message WHERE state <> 'delivered' GROUP BY topic, state;
CREATE TEMP VIEW by_state AS SELECT topic, ready, leased, waiting, dead FROM outbox.stats;
CREATE TEMP VIEW totals AS SELECT topic, delivered_total, failed_total, stale_total FROM outbox.stats;

SELECT count(outbox.append('a', 'e', to_jsonb(n))) FROM generate_series(1, 6) AS n;
SELECT count(outbox.append('b', 'e', to_jsonb(n), available_at => now() + interval '1 hour')) FROM generate_series(1, 3) AS n;
SELECT count(outbox.append('b', 'e', to_jsonb(n), available_at => clock_timestamp() + interval '0.2 s')) FROM generate_series(4, 5) AS n;
SELECT * FROM by_state;
SELECT pg_sleep(0.3);
SELECT * FROM by_state;
-- Every state, and every way into it; a lease that ran out, with attempts left and without; an attempts limit of its own.
SELECT outbox.set_topic('b', '{"max_attempts": 1}');
SELECT count(*) FROM outbox.claim('worker', 'b', batch_size => 1);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE topic = 'b' AND lease IS NOT NULL;
SELECT payload, outbox.fail(token, 'no') FROM outbox.claim('worker', 'b', batch_size => 1);
SELECT payload, outbox.abandon(token) FROM outbox.claim('worker', 'a', batch_size => 1);
SELECT payload, outbox.fail(token, 'no') FROM outbox.claim('worker', 'a', batch_size => 1);
SELECT count(*) FROM outbox.claim('worker', 'a', batch_size => 1, lease_seconds => 1);
SELECT token FROM outbox.claim('worker', 'a', batch_size => 1) \gset
SELECT payload, outbox.complete(token) FROM outbox.claim('worker', 'a', batch_size => 1);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE topic = 'a' AND leased_until < now() + interval '10 s';
SELECT * FROM by_state;
SELECT * FROM difference;
-- Paused or not, what is ready is shown.
SELECT outbox.pause('a');
SELECT * FROM by_state WHERE topic = 'a';
SELECT outbox.resume('a');
-- How long the oldest ready message has been due, in whole seconds.
SELECT topic, oldest_ready_seconds FROM outbox.stats;
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '100 s' WHERE seq = (SELECT min(seq) FROM outbox.delivery WHERE topic = 'a' AND leased_until < clock_timestamp());
SELECT topic, oldest_ready_seconds BETWEEN 100 AND 130 AS about_100 FROM outbox.stats WHERE topic = 'a';
SELECT count(*) FROM outbox.append('c', 'e', '1', available_at => '2000-01-01');
SELECT topic, oldest_ready_seconds < 30 AS since_its_append FROM outbox.stats WHERE topic = 'c';

-- Also if all that is ready is parked behind a leased message of its key, or behind nothing at all.
SELECT count(outbox.append('k', 'e', to_jsonb(n), key => 'one')) FROM generate_series(1, 5) AS n;
SELECT count(*) FROM outbox.claim('worker', 'k', batch_size => 1);
SELECT count(*) FROM outbox.claim('worker', 'k');
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '400 s' WHERE topic = 'k';
SELECT place, count(*) FROM outbox.delivery WHERE topic = 'k' GROUP BY place ORDER BY place;
SELECT topic, ready, leased, oldest_ready_seconds BETWEEN 400 AND 430 AS about_400 FROM outbox.stats WHERE topic = 'k';
SELECT ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name = 'oldest ready';
DELETE FROM outbox.delivery WHERE topic = 'k' AND place = 'r';
SELECT topic, ready, leased, oldest_ready_seconds BETWEEN 400 AND 430 AS about_400 FROM outbox.stats WHERE topic = 'k';
SELECT ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name = 'oldest ready';
DELETE FROM outbox.delivery WHERE topic = 'k';
DELETE FROM outbox.envelope WHERE topic = 'k';

-- Totals count what committed; not a stale answer as delivered, and not a repeated one.
SELECT * FROM totals;
SELECT outbox.complete(:'token'), outbox.complete(:'token'), outbox.extend(:'token') IS NULL AS stale, outbox.complete(gen_random_uuid());
SELECT * FROM totals WHERE topic = 'a';
SELECT completed FROM outbox.complete_batch(ARRAY[:'token', :'token']::uuid[]);
SELECT * FROM totals WHERE topic = 'a';
SELECT count(outbox.append('a', 'e', to_jsonb(n))) FROM generate_series(11, 14) AS n;
BEGIN;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', 'a', batch_size => 1);
SELECT * FROM totals WHERE topic = 'a';
SAVEPOINT one;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', 'a', batch_size => 1);
SAVEPOINT two;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', 'a', batch_size => 1);
RELEASE two;
ROLLBACK TO one;
SAVEPOINT three;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', 'a', batch_size => 1);
RELEASE three;
COMMIT;
SELECT * FROM totals WHERE topic = 'a';
BEGIN;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', 'a', batch_size => 1);
ROLLBACK;
SELECT * FROM totals WHERE topic = 'a';

-- A topic that is drained and purged is still shown, for as long as the server runs; one that never had an answer is not.
SELECT count(outbox.append('d', 'e', '1'));
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed;
SELECT * FROM outbox.stats;
-- More than is counted one by one: ready, waiting and dead ones in great number, all due at the same time or at different ones.
CREATE FUNCTION pg_temp.append_many(topic text, message text) RETURNS bigint LANGUAGE sql AS
$$ SELECT count(*) FROM outbox.append_batch($1, (SELECT jsonb_agg(format($2, n)::jsonb) FROM generate_series(1, 10000) AS n)) $$;
SELECT pg_temp.append_many('ready', '{"type": "e", "payload": 1}'), pg_temp.append_many('ready', '{"type": "e", "payload": 2}'),
       pg_temp.append_many('dead', '{"type": "e", "payload": 1}'), pg_temp.append_many('dead', '{"type": "e", "payload": 2}'),
       pg_temp.append_many('waiting', '{"type": "e", "payload": 1, "available_at": "2100-01-01T00:00:00Z"}'),
       pg_temp.append_many('waiting', '{"type": "e", "payload": 1, "available_at": "2100-01-01T00:00:00Z"}'),
       pg_temp.append_many('waiting', '{"type": "e", "payload": 1, "available_at": "2100-01-01T00:00:01.%s00000Z"}');
UPDATE outbox.delivery SET place = 'x' WHERE topic = 'dead';
VACUUM outbox.delivery;
SELECT * FROM by_state;
SELECT * FROM difference;
-- In a read-only transaction, too.
BEGIN READ ONLY;
SELECT count(*) FROM outbox.stats;
ROLLBACK;
TRUNCATE outbox.envelope, outbox.delivery;
