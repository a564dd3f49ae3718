-- release: given back at once, its attempt uncounted, its place in line kept.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

SELECT count(outbox.append('release', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT outbox.release(token => :'token');
SELECT payload, state, attempts, last_error, lease_owner, leased_until, dead_at, delivered_at FROM outbox.message ORDER BY payload LIMIT 1;
SELECT outbox.release(:'token'), outbox.complete(:'token'), outbox.fail(:'token', 'late'), outbox.abandon(:'token', 'late'),
       outbox.extend(:'token');
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload LIMIT 1;
SELECT payload, attempts FROM outbox.claim('worker');

-- Never the last attempt, however often: what is given back is not counted.
TRUNCATE outbox.envelope, outbox.delivery;
INSERT INTO outbox.topic (topic, max_attempts) VALUES ('release', 1);
SELECT count(outbox.append('release', 'e', '1'));
SELECT attempts, outbox.release(token) FROM generate_series(1, 3) AS call, outbox.claim('worker ' || call);
-- Nor does it touch what earlier attempts left.
UPDATE outbox.topic SET max_attempts = 3;
SELECT outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker');
SELECT attempts, outbox.release(token) FROM outbox.claim('worker');
SELECT state, attempts, last_error FROM outbox.message;

-- Run out and not claimed since: current. Claimed again since: stale, and the other's lease stays.
SELECT token FROM outbox.claim('worker') \gset
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 day';
SELECT outbox.release(:'token');
SELECT state, attempts FROM outbox.message;
SELECT token FROM outbox.claim('worker') \gset
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT attempts FROM outbox.claim('thief');
SELECT outbox.release(:'token');
SELECT state, attempts, lease_owner FROM outbox.message;
SELECT outbox.release(gen_random_uuid()) AS random, outbox.release('00000000-0000-0000-0000-000000000000') AS nil;
