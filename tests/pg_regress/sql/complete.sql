-- complete: delivered once, by the current lease only, run out or not.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

SELECT count(outbox.append('complete', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT token FROM outbox.claim('worker 1', batch_size => 1) \gset
SELECT clock_timestamp() AS before \gset
SELECT outbox.complete(token => :'token');
SELECT payload, state, attempts, lease_owner, leased_until, dead_at, last_error,
       delivered_at BETWEEN :'before' AND clock_timestamp() AS delivered_now
  FROM outbox.message ORDER BY payload LIMIT 1;
-- It is over: a second answer of any kind is stale and changes nothing, and nobody gets it again.
SELECT outbox.complete(:'token'), outbox.fail(:'token', 'late'), outbox.abandon(:'token', 'late'),
       outbox.extend(:'token'), outbox.release(:'token');
SELECT payload, state, attempts, lease_owner, last_error FROM outbox.message ORDER BY payload LIMIT 1;
SELECT payload FROM outbox.claim('worker 2', batch_size => 1);

-- The token of a lease that was given back, and of one that another claim has followed.
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT outbox.release(:'token');
SELECT outbox.complete(:'token');
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset first_
SELECT outbox.complete(:'token');
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE lease_owner = 'worker';
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset second_
SELECT outbox.complete(:'first_token') AS first;
SELECT payload, state, attempts FROM outbox.message WHERE lease_owner = 'worker';
-- Run out, but nobody has claimed the message since: still current.
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 day' WHERE lease_owner = 'worker';
SELECT outbox.complete(:'second_token') AS second;
SELECT payload, state, attempts FROM outbox.message WHERE lease_owner = 'worker';
SELECT outbox.complete(:'first_token') AS first, outbox.complete(:'second_token') AS second;

-- Uuids that are no tokens: random, nil, a message's id, and a token with one digit changed.
SELECT outbox.append('complete', 'e', '4') AS id \gset
SELECT token FROM outbox.claim('worker 3') \gset
SELECT outbox.complete(gen_random_uuid()) AS random, outbox.complete('00000000-0000-0000-0000-000000000000') AS nil,
       outbox.complete('ffffffff-ffff-ffff-ffff-ffffffffffff') AS max, outbox.complete(:'id') AS id;
SELECT bool_or(outbox.complete(overlay(:'token' PLACING to_hex(('x' || substr(:'token', place, 1))::bit(4)::int # bit)
                               FROM place)::uuid)) AS forged
  FROM generate_series(1, 36) AS place, unnest('{1,2,4,8}'::int[]) AS bit
 WHERE substr(:'token', place, 1) <> '-';
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.complete(:'token');

-- In a transaction that rolls back nothing was answered: the lease is still current.
SELECT count(outbox.append('complete', 'e', '5'));
SELECT token FROM outbox.claim('worker 4') \gset
BEGIN;
SELECT outbox.complete(:'token');
SELECT outbox.complete(:'token');
ROLLBACK;
SELECT outbox.complete(:'token');
SELECT payload, state, attempts FROM outbox.message ORDER BY payload;
