-- fail: waiting until the next attempt is due, or dead after the last one; what becomes of the error text.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Waiting, with its error; the lease is over.
SELECT count(outbox.append('fail', 'e', '1'));
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.fail(token => :'token', error => 'connection refused', retry_at => clock_timestamp() + interval '1 hour');
SELECT state, attempts, last_error, lease_owner, leased_until, dead_at, delivered_at,
       available_at BETWEEN clock_timestamp() + interval '59 min' AND clock_timestamp() + interval '1 hour' AS due_in_an_hour
  FROM outbox.message;
SELECT outbox.fail(:'token', 'again'), outbox.complete(:'token'), outbox.abandon(:'token', 'again'),
       outbox.extend(:'token'), outbox.release(:'token');
SELECT state, attempts, last_error FROM outbox.message;
SELECT count(*) FROM outbox.claim('worker');

-- retry_at in the past means now: it says waiting and is claimable at once. The next failure's error replaces the last, also by none.
UPDATE outbox.delivery SET available_at = clock_timestamp();
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.fail(:'token', 'still refused', '2000-01-01');
SELECT state, attempts, last_error FROM outbox.message;
SELECT token, attempts FROM outbox.claim('worker') \gset
SELECT :attempts AS attempts, outbox.fail(:'token', retry_at => '4713-11-24 BC');
SELECT state, attempts, last_error FROM outbox.message;
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.fail(:'token', '', '294276-12-31');
SELECT state, attempts, last_error, last_error = '' AS empty FROM outbox.message;
TRUNCATE outbox.envelope, outbox.delivery;

-- Without retry_at: backoff_seconds, doubled with every attempt, at most backoff_max_seconds.
SET outbox.max_attempts = 50;
CREATE FUNCTION pg_temp.backoff(attempt integer, OUT attempts integer, OUT seconds numeric) LANGUAGE plpgsql AS $$
DECLARE
  lease outbox.claimed;
BEGIN
  UPDATE outbox.delivery SET attempts = attempt - 1, place = 'r', available_at = NULL;
  SELECT * INTO STRICT lease FROM outbox.claim('worker');
  IF outbox.fail(lease.token) <> 'waiting' THEN RAISE 'not waiting'; END IF;
  SELECT m.attempts, ceil(extract(epoch FROM available_at - clock_timestamp())) INTO attempts, seconds FROM outbox.message AS m;
END $$;
SELECT count(outbox.append('fail', 'e', '1'));
SELECT b.* FROM unnest('{1,2,3,4,5,6,7,8,9,49}'::int[]) AS n, pg_temp.backoff(n) AS b;
SET outbox.backoff_seconds = 1;
SET outbox.backoff_max_seconds = 86400;
SELECT b.* FROM unnest('{1,2,5,17,18,49}'::int[]) AS n, pg_temp.backoff(n) AS b;
SET outbox.backoff_seconds = 100;
SET outbox.backoff_max_seconds = 40;
SELECT b.* FROM unnest('{1,2}'::int[]) AS n, pg_temp.backoff(n) AS b;
-- The topic's own go first, each for itself.
INSERT INTO outbox.topic (topic, backoff_seconds) VALUES ('fail', 7);
SELECT b.* FROM unnest('{1,2,3,4}'::int[]) AS n, pg_temp.backoff(n) AS b;
UPDATE outbox.topic SET backoff_max_seconds = 20;
SELECT b.* FROM unnest('{1,2,3,4}'::int[]) AS n, pg_temp.backoff(n) AS b;
RESET outbox.backoff_seconds;
RESET outbox.backoff_max_seconds;
RESET outbox.max_attempts;
TRUNCATE outbox.envelope, outbox.delivery, outbox.topic;

-- The last allowed attempt: dead, whatever retry_at says.
SET outbox.max_attempts = 2;
SELECT count(outbox.append('fail', 'e', '1'));
SELECT outbox.fail(token, 'first', '2000-01-01') FROM outbox.claim('worker');
SELECT token FROM outbox.claim('worker') \gset
SELECT clock_timestamp() AS before \gset
SELECT outbox.fail(:'token', 'second', clock_timestamp() + interval '1 hour');
SELECT state, attempts, last_error, lease_owner, leased_until, delivered_at,
       dead_at BETWEEN :'before' AND clock_timestamp() AS dead_now
  FROM outbox.message;
SELECT outbox.fail(:'token', 'third') AS again;
SELECT count(*) FROM outbox.claim('worker');
-- The topic's own limit goes first.
INSERT INTO outbox.topic (topic, max_attempts) VALUES ('fail once', 1), ('fail thrice', 3);
SELECT count(outbox.append(topic, 'e', '1')) FROM outbox.topic;
SELECT topic, outbox.fail(token, retry_at => '2000-01-01') FROM outbox.claim('worker') ORDER BY topic;
SELECT topic, outbox.fail(token, retry_at => '2000-01-01') FROM outbox.claim('worker') ORDER BY topic;
SELECT topic, outbox.fail(token, retry_at => '2000-01-01') FROM outbox.claim('worker') ORDER BY topic;
SELECT topic, state, attempts FROM outbox.message WHERE topic <> 'fail' ORDER BY topic;
RESET outbox.max_attempts;

-- A run-out lease is current until somebody claims the message.
TRUNCATE outbox.envelope, outbox.delivery, outbox.topic;
SELECT count(outbox.append('fail', 'e', '1'));
SELECT token FROM outbox.claim('worker') \gset first_
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 day';
SELECT outbox.fail(:'first_token', 'late', '2000-01-01');
SELECT token FROM outbox.claim('worker') \gset second_
SELECT outbox.fail(:'first_token', 'too late', '2000-01-01');
SELECT state, attempts, last_error FROM outbox.message;
SELECT outbox.fail(gen_random_uuid()) AS random, outbox.fail('00000000-0000-0000-0000-000000000000') AS nil;

-- Any error text is kept as it is, cut to 8192 bytes on a character border.
SELECT outbox.fail(:'second_token', E'tab\t, line\n, bell\a, "quotes", \\, %s, $1, \u00e4\u4e2d\U0001f600', '2000-01-01');
SELECT last_error = E'tab\t, line\n, bell\a, "quotes", \\, %s, $1, \u00e4\u4e2d\U0001f600' AS kept FROM outbox.message;
CREATE FUNCTION pg_temp.kept(text, OUT characters integer, OUT bytes integer, OUT prefix boolean) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE outbox.delivery SET attempts = 1;
  PERFORM outbox.fail(token, $1, '2000-01-01') FROM outbox.claim('worker');
  SELECT length(last_error), octet_length(last_error), starts_with($1, last_error) INTO characters, bytes, prefix FROM outbox.message;
END $$;
SELECT * FROM pg_temp.kept(repeat('x', 8192));
SELECT * FROM pg_temp.kept(repeat('x', 8193));
SELECT * FROM pg_temp.kept(repeat(U&'\00E4', 10000));
SELECT * FROM pg_temp.kept('x' || repeat(U&'\00E4', 10000));
SELECT * FROM pg_temp.kept(repeat(U&'\4E2D', 10000));
SELECT * FROM pg_temp.kept(repeat(U&'\+01F600', 2048));
SELECT * FROM pg_temp.kept('xyz' || repeat(U&'\+01F600', 10000));
SELECT * FROM pg_temp.kept((SELECT string_agg(md5(n::text), U&'\00E4') FROM generate_series(1, 300000) AS n));
SELECT * FROM pg_temp.kept(repeat(U&'\00E4', 5000000));
