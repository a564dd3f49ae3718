-- abandon: dead now, whatever attempts are left.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

SELECT count(outbox.append('abandon', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT clock_timestamp() AS before \gset
SELECT outbox.abandon(token => :'token', error => 'malformed order');
SELECT payload, state, attempts, last_error, lease_owner, leased_until, delivered_at,
       dead_at BETWEEN :'before' AND clock_timestamp() AS dead_now
  FROM outbox.message ORDER BY payload LIMIT 1;
-- Over: every other answer is stale, and nobody gets it again.
SELECT outbox.abandon(:'token', 'again'), outbox.complete(:'token'), outbox.fail(:'token', 'again'),
       outbox.extend(:'token'), outbox.release(:'token');
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload LIMIT 1;
SELECT payload FROM outbox.claim('worker', batch_size => 1);

-- An error of an earlier attempt is replaced, also by none.
SELECT outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker', batch_size => 1);
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT outbox.abandon(:'token');
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload DESC LIMIT 1;

-- Stale: no token, given back, claimed again since. Current: run out.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT outbox.abandon(gen_random_uuid()) AS random, outbox.abandon('00000000-0000-0000-0000-000000000000') AS nil;
SELECT count(outbox.append('abandon', 'e', '1'));
SELECT token FROM outbox.claim('worker') \gset first_
SELECT outbox.release(:'first_token');
SELECT outbox.abandon(:'first_token');
SELECT token FROM outbox.claim('worker') \gset second_
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT token FROM outbox.claim('worker') \gset third_
SELECT outbox.abandon(:'second_token');
SELECT state, attempts, last_error FROM outbox.message;
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT outbox.abandon(:'third_token', repeat('x', 8191) || U&'\00E4' || 'y');
SELECT state, attempts, last_error = repeat('x', 8191) AS error_cut FROM outbox.message;
