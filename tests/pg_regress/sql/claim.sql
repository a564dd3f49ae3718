-- claim: what it hands out, in which order, how many, for how long, and what it leaves alone.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Every column of a row.
SELECT outbox.append('claim', 'evt.test.v1', '{"n": 1}', '00000000-0000-4000-8000-000000000001', NULL, 'k', '{"h": "1"}');
SELECT clock_timestamp() AS before \gset
SELECT * FROM outbox.claim(owner => 'worker 1', topic => 'claim', batch_size => 1, lease_seconds => 30, wait_seconds => 0) \gset c_
SELECT :'c_id' AS id, :'c_topic' AS topic, :'c_type' AS type, :'c_payload' AS payload, :'c_key' AS key,
       :'c_headers' AS headers, :'c_attempts' AS attempts,
       :'c_occurred_at' = created_at AS occurred_at,
       :'c_leased_until' = leased_until AS leased_until,
       leased_until BETWEEN :'before'::timestamptz + interval '30 s' AND clock_timestamp() + interval '30 s' AS for_30_s,
       :'c_token' NOT IN (id::text, '00000000-0000-0000-0000-000000000000') AS token,
       state, lease_owner, attempts
  FROM outbox.message;
-- What is leased is not claimable.
SELECT count(*) FROM outbox.claim('worker 2');
-- Without key and headers.
SELECT count(outbox.append('claim', 'e', '2'));
SELECT key, headers, attempts FROM outbox.claim('worker 1');
TRUNCATE outbox.envelope, outbox.delivery;

-- Oldest first; each row has a token of its own, and every lease a new one.
SELECT count(outbox.append('claim', 'e', to_jsonb(n))) FROM generate_series(1, 5) AS n;
CREATE TEMP TABLE lease AS
SELECT payload, token, place FROM outbox.claim('worker', 'claim')
  WITH ORDINALITY AS c (id, token, topic, type, payload, occurred_at, key, headers, attempts, leased_until, place);
SELECT payload FROM lease ORDER BY place;
SELECT count(outbox.release(token)) FROM lease;
INSERT INTO lease SELECT payload, token, 0 FROM outbox.claim('worker', 'claim');
UPDATE outbox.delivery SET leased_until = clock_timestamp();
INSERT INTO lease SELECT payload, token, 0 FROM outbox.claim('worker', 'claim');
SELECT count(*), count(DISTINCT token) AS tokens FROM lease;
DROP TABLE lease;
TRUNCATE outbox.envelope, outbox.delivery;

-- One topic: the others are left alone. No topic: all of them, oldest first over all.
SELECT count(outbox.append(CASE n % 3 WHEN 0 THEN 'claim a' WHEN 1 THEN 'claim b' ELSE 'claim' END, 'e', to_jsonb(n)))
  FROM generate_series(1, 9) AS n;
SELECT topic, payload FROM outbox.claim('worker', 'claim', batch_size => 1);
SELECT topic, payload FROM outbox.claim('worker', batch_size => 4);
SELECT topic, payload FROM outbox.claim('worker', 'claim a');
SELECT topic, payload FROM outbox.claim('worker', 'claim nothing');
SELECT topic, payload FROM outbox.claim('worker');
-- Topics are compared byte by byte: case, spaces and the two ways to write an accent make a difference.
CREATE TEMP TABLE name AS
SELECT * FROM (VALUES (1, 'Claim'), (2, 'claim'), (3, 'claim '), (4, U&'cl\00E4im'), (5, U&'cla\0308im')) AS v (n, topic);
SELECT count(outbox.append(topic, 'e', to_jsonb(n))) FROM name;
SELECT n, payload FROM name, LATERAL outbox.claim('worker', name.topic) ORDER BY n;
TRUNCATE outbox.envelope, outbox.delivery;

-- How many: the argument, else the topic's, else the setting; at most 500.
SELECT count(outbox.append('claim', 'e', to_jsonb(n))) FROM generate_series(1, 600) AS n;
BEGIN;
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim');
SET LOCAL outbox.batch_size = 3;
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim');
INSERT INTO outbox.topic (topic, batch_size) VALUES ('claim', 2);
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim');
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim', batch_size => 5);
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim', batch_size => 500);
SELECT count(*), max(payload::int) FROM outbox.claim('worker', 'claim', batch_size => 500);
ROLLBACK;

-- For how long: the argument, else the topic's, else the setting. Over all topics, each row by its own.
SELECT count(outbox.append('claim other', 'e', '1'));
CREATE FUNCTION pg_temp.lease_lengths(topic text, batch_size integer, lease_seconds integer DEFAULT NULL)
RETURNS TABLE (claimed_topic text, seconds numeric) LANGUAGE sql AS $$
  SELECT c.topic, ceil(extract(epoch FROM leased_until - clock_timestamp())) FROM outbox.claim('worker', $1, $2, $3) AS c
$$;
BEGIN;
SELECT * FROM pg_temp.lease_lengths('claim', 1);
SET LOCAL outbox.lease_seconds = 20;
SELECT * FROM pg_temp.lease_lengths('claim', 1);
INSERT INTO outbox.topic (topic, lease_seconds) VALUES ('claim other', 300);
SELECT * FROM pg_temp.lease_lengths('claim other', 1);
SELECT * FROM pg_temp.lease_lengths('claim', 1, 43200);
UPDATE outbox.delivery SET leased_until = clock_timestamp();
UPDATE outbox.topic SET lease_seconds = 400;
SELECT claimed_topic, seconds, count(*) FROM pg_temp.lease_lengths(NULL, 500) GROUP BY 1, 2 ORDER BY 1;
SELECT claimed_topic, seconds, count(*) FROM pg_temp.lease_lengths(NULL, 500) GROUP BY 1, 2 ORDER BY 1;
ROLLBACK;
TRUNCATE outbox.envelope, outbox.delivery;

-- Delivered, dead, waiting and leased messages are not claimable, nor are those of a paused topic, asked for or not.
SELECT count(outbox.append('claim', 'e', to_jsonb(n), available_at => CASE n WHEN 5 THEN now() + interval '1 hour' END))
  FROM generate_series(1, 6) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.fail(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT payload FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.append('claim paused', 'e', '7'));
INSERT INTO outbox.topic (topic, paused) VALUES ('claim paused', true);
SELECT payload FROM outbox.claim('worker', 'claim paused');
SELECT payload FROM outbox.claim('worker');
SELECT payload, state FROM outbox.message ORDER BY payload;
DELETE FROM outbox.topic;
SELECT payload FROM outbox.claim('worker', 'claim paused');
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- A batch is filled from behind what cannot be claimed.
SELECT count(outbox.append('claim', 'e', to_jsonb(n))) FROM generate_series(1, 6) AS n;
SELECT payload FROM outbox.claim('worker', batch_size => 2);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE seq = (SELECT min(seq) FROM outbox.delivery);
SELECT payload, attempts FROM outbox.claim('worker', batch_size => 3);
TRUNCATE outbox.envelope, outbox.delivery;

-- wait_seconds: as long as nothing is claimable, and no longer.
SELECT count(outbox.append('claim', 'e', '1', available_at => clock_timestamp() + interval '200 ms'));
SELECT clock_timestamp() AS before \gset
SELECT payload FROM outbox.claim('worker', 'claim', wait_seconds => 30);
SELECT clock_timestamp() - :'before' < interval '10 s' AS no_longer;
SELECT count(outbox.append('claim', 'e', '2'));
SELECT clock_timestamp() AS before \gset
SELECT payload FROM outbox.claim('worker', 'claim', wait_seconds => 30);
SELECT clock_timestamp() - :'before' < interval '10 s' AS at_once;
SELECT clock_timestamp() AS before \gset
SELECT payload FROM outbox.claim('worker', 'claim', wait_seconds => 1);
SELECT clock_timestamp() - :'before' BETWEEN interval '1 s' AND interval '10 s' AS waited;
-- A lease that runs out meanwhile is reason enough.
UPDATE outbox.delivery SET leased_until = clock_timestamp() + interval '200 ms';
SELECT payload, attempts FROM outbox.claim('worker', 'claim', wait_seconds => 30, batch_size => 1);
-- A cancel ends it.
SET statement_timeout = '100ms';
SELECT payload FROM outbox.claim('worker', 'claim nothing', wait_seconds => 60);
RESET statement_timeout;
