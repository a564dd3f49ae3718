-- retry_dead: another life for a dead message, and for no other.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SET outbox.max_attempts = 2;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

-- No attempts counted, ready, its place and its last error kept.
SELECT count(outbox.append('retry', 'e', to_jsonb(n), pg_temp.id(n))) FROM generate_series(1, 3) AS n;
SELECT outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker', batch_size => 1);
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT outbox.fail(:'token', 'second');
SELECT state, attempts, last_error FROM outbox.message WHERE payload = '1';
SELECT outbox.retry_dead(id => pg_temp.id(1));
SELECT state, attempts, last_error, lease_owner, leased_until, dead_at, delivered_at, available_at <= clock_timestamp() AS due
  FROM outbox.message WHERE payload = '1';
-- Once: it is dead no more. The token of its former life is stale.
SELECT outbox.retry_dead(pg_temp.id(1));
SELECT outbox.complete(:'token');
-- It comes before younger ones, and has all its attempts again; the error stays until the next one.
SELECT payload, attempts, outbox.release(token) FROM outbox.claim('worker', batch_size => 1);
SELECT state, attempts, last_error FROM outbox.message WHERE payload = '1';
SELECT attempts, outbox.fail(token, 'third', '2000-01-01') FROM outbox.claim('worker', batch_size => 1);
SELECT attempts, outbox.fail(token, 'fourth', '2000-01-01') FROM outbox.claim('worker', batch_size => 1);
SELECT state, attempts, last_error FROM outbox.message WHERE payload = '1';
-- After abandon, then delivered.
SELECT outbox.retry_dead(pg_temp.id(1));
SELECT payload, outbox.abandon(token, 'fifth') FROM outbox.claim('worker', batch_size => 1);
SELECT outbox.retry_dead(pg_temp.id(1));
SELECT payload, attempts, outbox.complete(token) FROM outbox.claim('worker', batch_size => 1);

-- Delivered, ready, leased, waiting, its lease run out with attempts left, not stored: false, and nothing changes.
SELECT count(outbox.append('retry', 'e', to_jsonb(n), pg_temp.id(n), CASE n WHEN 4 THEN now() + interval '1 hour' END))
  FROM generate_series(4, 5) AS n;
SELECT payload FROM outbox.claim('worker', batch_size => 2);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE seq = (SELECT min(seq) FROM outbox.delivery);
CREATE TEMP TABLE before AS SELECT * FROM outbox.message;
SELECT payload, state, outbox.retry_dead(id) FROM outbox.message ORDER BY payload;
SELECT outbox.retry_dead(pg_temp.id(99));
SELECT count(*) FROM before JOIN outbox.message AS after ON before.* IS NOT DISTINCT FROM after.*;

-- Its last lease ran out, though nobody has recorded its death.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT outbox.append('retry', 'e', '1', pg_temp.id(1));
SELECT outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker');
SELECT token FROM outbox.claim('worker') \gset
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT state, last_error FROM outbox.message;
SELECT outbox.retry_dead(pg_temp.id(1));
SELECT state, attempts, last_error, lease_owner, dead_at FROM outbox.message;
SELECT outbox.complete(:'token');
SELECT attempts FROM outbox.claim('worker');

-- Delayed once, dead, revived: not delayed again.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT outbox.append('retry', 'e', '1', pg_temp.id(1), clock_timestamp() + interval '1 hour');
UPDATE outbox.delivery SET available_at = clock_timestamp();
UPDATE outbox.envelope SET available_at = clock_timestamp();
SELECT outbox.abandon(token) FROM outbox.claim('worker');
SELECT outbox.retry_dead(pg_temp.id(1));
SELECT state, available_at <= clock_timestamp() AS due FROM outbox.message;
SELECT payload FROM outbox.claim('worker');

-- Rolled back, it stays dead.
SELECT outbox.retry_dead(pg_temp.id(1)) AS leased;
UPDATE outbox.delivery SET attempts = 2, leased_until = clock_timestamp();
BEGIN;
SELECT outbox.retry_dead(pg_temp.id(1));
ROLLBACK;
SELECT state FROM outbox.message;
