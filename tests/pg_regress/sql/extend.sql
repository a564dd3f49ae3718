-- extend: the lease ends lease_seconds from now, later or sooner than before.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

SELECT count(outbox.append('extend', 'e', '1'));
SELECT token FROM outbox.claim('worker', lease_seconds => 10) \gset
SELECT clock_timestamp() AS before \gset
SELECT outbox.extend(token => :'token', lease_seconds => 43200) AS until \gset
SELECT :'until' BETWEEN :'before'::timestamptz + interval '12 h' AND clock_timestamp() + interval '12 h' AS in_12_hours,
       leased_until = :'until' AS shown, state, attempts, lease_owner
  FROM outbox.message;
-- Sooner, and with the same token as often as one likes.
SELECT ceil(extract(epoch FROM outbox.extend(:'token', 20) - clock_timestamp())) AS seconds;
SELECT ceil(extract(epoch FROM leased_until - clock_timestamp())) AS seconds FROM outbox.message;
-- How long: the argument, else the topic's, else the setting.
SELECT ceil(extract(epoch FROM outbox.extend(:'token') - clock_timestamp())) AS seconds;
SET outbox.lease_seconds = 3600;
SELECT ceil(extract(epoch FROM outbox.extend(:'token') - clock_timestamp())) AS seconds;
INSERT INTO outbox.topic (topic, lease_seconds) VALUES ('extend', 90);
SELECT ceil(extract(epoch FROM outbox.extend(:'token') - clock_timestamp())) AS seconds;
SELECT ceil(extract(epoch FROM outbox.extend(:'token', 30) - clock_timestamp())) AS seconds;
RESET outbox.lease_seconds;

-- Run out and not claimed since: leased again by the same token.
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 day';
SELECT state FROM outbox.message;
SELECT outbox.extend(:'token') > clock_timestamp() AS extended;
SELECT state, attempts FROM outbox.message;
SELECT count(*) FROM outbox.claim('thief');
SELECT outbox.complete(:'token');

-- Stale: delivered, claimed again since, given back, no token. Nothing changes.
SELECT outbox.extend(:'token');
SELECT count(outbox.append('extend', 'e', '2'));
SELECT token FROM outbox.claim('worker') \gset
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT token, leased_until FROM outbox.claim('thief', lease_seconds => 50) \gset thief_
SELECT outbox.extend(:'token', 500);
SELECT state, attempts, lease_owner, leased_until = :'thief_leased_until' AS unchanged FROM outbox.message WHERE payload = '2';
SELECT outbox.release(:'thief_token');
SELECT outbox.extend(:'thief_token');
SELECT state, attempts FROM outbox.message WHERE payload = '2';
SELECT outbox.extend(gen_random_uuid()) AS random, outbox.extend('00000000-0000-0000-0000-000000000000') AS nil;
