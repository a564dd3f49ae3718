-- lifecycle: attempts and their limit, expiry, late answers, order of redelivery.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SET outbox.max_attempts = 3;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
-- All running leases run out.
CREATE PROCEDURE pg_temp.expire() LANGUAGE sql AS
$$ UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 s' WHERE leased_until > clock_timestamp() $$;
CREATE VIEW pg_temp.m AS SELECT payload, state, attempts, lease_owner, last_error FROM outbox.message ORDER BY payload;

-- One attempt per claim, however it ends; a lease given back is uncounted. The last one dies by fail.
SELECT count(outbox.append('lifecycle', 'e', '1'));
SELECT attempts, outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker');
SELECT attempts, outbox.release(token) FROM outbox.claim('worker');
SELECT attempts FROM outbox.claim('worker');
CALL pg_temp.expire();
SELECT * FROM pg_temp.m;
SELECT attempts, outbox.fail(token, 'third', '2000-01-01') FROM outbox.claim('worker');
SELECT * FROM pg_temp.m;
SELECT count(*) FROM outbox.claim('worker');

-- The last one dies by expiry: nothing but a claim on its topic is needed to record it, and it is never delivered again.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('lifecycle', 'e', '1'));
SELECT attempts, outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker');
SELECT attempts FROM outbox.claim('worker');
CALL pg_temp.expire();
SELECT token, attempts FROM outbox.claim('worker 3') \gset
CALL pg_temp.expire();
SELECT * FROM pg_temp.m;
-- Shown dead, not recorded yet: the late answer still counts. (Rolled back, to see the death recorded.)
BEGIN;
SELECT outbox.complete(:'token');
SELECT * FROM pg_temp.m;
ROLLBACK;
BEGIN;
SELECT outbox.extend(:'token') IS NOT NULL AS extended;
SELECT * FROM pg_temp.m;
ROLLBACK;
BEGIN;
SELECT outbox.fail(:'token', 'late', '2000-01-01');
SELECT * FROM pg_temp.m;
ROLLBACK;
BEGIN;
SELECT outbox.release(:'token');
SELECT * FROM pg_temp.m;
ROLLBACK;
-- A claim on another topic records nothing; one on this topic, or on any, does.
SELECT count(*) FROM outbox.claim('worker', 'another topic');
SELECT :attempts AS attempts, outbox.extend(:'token') IS NOT NULL AS still_current;
CALL pg_temp.expire();
SELECT count(*) FROM outbox.claim('worker');
SELECT * FROM pg_temp.m;
SELECT outbox.complete(:'token'), outbox.fail(:'token'), outbox.abandon(:'token'), outbox.extend(:'token'), outbox.release(:'token');
SET outbox.max_attempts = 50;
SELECT count(*) FROM outbox.claim('worker');
SELECT * FROM pg_temp.m;
SET outbox.max_attempts = 3;

-- The limit of one attempt.
TRUNCATE outbox.envelope, outbox.delivery;
SET outbox.max_attempts = 1;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT payload, attempts FROM outbox.claim('worker', batch_size => 1);
CALL pg_temp.expire();
SELECT payload, attempts FROM outbox.claim('worker');
SELECT * FROM pg_temp.m;
SET outbox.max_attempts = 3;

-- The limit is lowered: what has reached it dies instead of being delivered, and does not disturb the others.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n))) FROM generate_series(1, 6) AS n;
SELECT attempts, count(outbox.fail(token, 'first', '2000-01-01')) FROM outbox.claim('worker', batch_size => 4) GROUP BY attempts;
SELECT attempts, count(outbox.fail(token, 'second', '2000-01-01')) FROM outbox.claim('worker', batch_size => 2) GROUP BY attempts;
SELECT payload, attempts FROM outbox.claim('crashed', batch_size => 3);
CALL pg_temp.expire();
SELECT payload, attempts, outbox.release(token) FROM outbox.claim('worker', batch_size => 1) WHERE payload = '3';
INSERT INTO outbox.topic (topic, max_attempts) VALUES ('lifecycle', 2);
SELECT payload, attempts FROM outbox.claim('worker');
SELECT * FROM pg_temp.m;
-- The lease that runs while the limit is lowered is not cut short, and its answer counts.
TRUNCATE outbox.envelope, outbox.delivery, outbox.topic;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT count(outbox.fail(token, 'first', '2000-01-01')) FROM outbox.claim('worker');
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset other_
INSERT INTO outbox.topic (topic, max_attempts) VALUES ('lifecycle', 1);
SELECT * FROM pg_temp.m;
SELECT count(*) FROM outbox.claim('worker');
SELECT outbox.complete(:'token'), outbox.fail(:'other_token', 'second', '2000-01-01');
SELECT * FROM pg_temp.m;
TRUNCATE outbox.topic;

-- More deaths at once than one batch: all of them end dead, none is delivered, and what is behind them is.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SET outbox.max_attempts = 1;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n))) FROM generate_series(1, 600) AS n;
SELECT count(*) FROM outbox.claim('crashed', batch_size => 500);
CALL pg_temp.expire();
SELECT count(*), min(payload::int), max(payload::int) FROM outbox.claim('worker', batch_size => 50);
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
SET outbox.max_attempts = 3;

-- A late answer after expiry counts until the message is claimed again, even with the same owner.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n))) FROM generate_series(1, 4) AS n;
CREATE TEMP TABLE lease AS SELECT payload, token FROM outbox.claim('worker');
CALL pg_temp.expire();
SELECT payload, outbox.complete(token) FROM lease WHERE payload = '1';
SELECT payload, outbox.extend(token) > clock_timestamp() AS extended FROM lease WHERE payload = '2';
SELECT payload, attempts FROM outbox.claim('worker', batch_size => 1);
SELECT payload, outbox.complete(token) FROM lease ORDER BY payload;
SELECT * FROM pg_temp.m;
DROP TABLE lease;

-- A lease of one second runs out by itself.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('lifecycle', 'e', '1'));
SELECT attempts FROM outbox.claim('worker', lease_seconds => 1);
SELECT pg_sleep(1.01);
SELECT * FROM pg_temp.m;
SELECT attempts FROM outbox.claim('worker');

-- Order: a redelivered message keeps its place and comes before younger ones, by whichever way it comes back.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n), pg_temp.id(n), CASE WHEN n = 4 THEN now() + interval '1 hour' END))
  FROM generate_series(1, 8) AS n;
CREATE TEMP TABLE lease AS SELECT payload, token FROM outbox.claim('worker', batch_size => 5);
SELECT payload FROM lease ORDER BY payload;
SELECT outbox.release(token) FROM lease WHERE payload = '5';
SELECT outbox.fail(token, NULL, '2000-01-01') FROM lease WHERE payload = '3';
SELECT outbox.abandon(token) FROM lease WHERE payload = '2';
SELECT outbox.retry_dead(pg_temp.id(2));
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE seq = (SELECT min(seq) FROM outbox.delivery);
UPDATE outbox.delivery SET available_at = clock_timestamp() WHERE available_at > clock_timestamp();
SELECT count(outbox.append('lifecycle', 'e', '9'));
SELECT payload, attempts FROM outbox.claim('worker', 'lifecycle');

-- Delayed messages keep their arrival order, among themselves and with others, whichever was due first.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('lifecycle', 'e', to_jsonb(n), available_at => CASE WHEN n <> 5 THEN now() + interval '1 day' END))
  FROM generate_series(1, 20) AS n;
UPDATE outbox.delivery AS d SET available_at = now() + make_interval(secs => 0.2 - payload::int / 200.0)
  FROM outbox.envelope AS e WHERE e.seq = d.seq AND d.available_at IS NOT NULL;
SELECT pg_sleep(0.3);
SELECT payload FROM outbox.claim('worker', batch_size => 1);
SELECT payload FROM outbox.claim('worker', 'lifecycle', batch_size => 1);
SELECT string_agg(payload::text, ' ' ORDER BY place) AS payloads
  FROM outbox.claim('worker') WITH ORDINALITY AS c (id, token, topic, type, payload, occurred_at, key, headers, attempts, leased_until, place);
