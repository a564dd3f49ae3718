-- settings: their defaults, ranges and contexts; a misspelt one is an error; changes count from the next call on.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
LOAD 'outbox';
SELECT name, boot_val, vartype AS type, min_val AS min, max_val AS max, context, unit
  FROM pg_settings WHERE name LIKE 'outbox.%' ORDER BY name COLLATE "C";
-- Each says what it is for, in a sentence.
SELECT name FROM pg_settings WHERE name LIKE 'outbox.%' AND short_desc !~ '^[A-Z].*\.$';

-- Just inside and just outside of the ranges of those that a session can change.
CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
SELECT name, pg_temp.try(format('SET LOCAL %s = %s', name, min_val::bigint - 1)) AS under,
       pg_temp.try(format('SET LOCAL %s = %s', name, min_val)) AS min,
       pg_temp.try(format('SET LOCAL %s = %s', name, max_val)) AS max,
       pg_temp.try(format('SET LOCAL %s = %s', name, max_val::bigint + 1)) AS over
  FROM pg_settings WHERE name LIKE 'outbox.%' AND vartype = 'integer' ORDER BY name COLLATE "C";

-- An ordinary role may change those of context user only.
CREATE ROLE regress_outbox_user;
SET ROLE regress_outbox_user;
SELECT name, pg_temp.try(format('SET LOCAL %s = %s', name, coalesce(quote_literal(boot_val), 'DEFAULT')))
  FROM pg_settings WHERE name LIKE 'outbox.%' ORDER BY name COLLATE "C";
RESET ROLE;
DROP ROLE regress_outbox_user;

-- The view's own default of max_attempts, for sessions without the library, is the setting's.
SELECT boot_val = substring(pg_get_viewdef('outbox.message') FROM $$current_setting\('outbox\.max_attempts'::text, true\)+::integer, (\d+)\)$$) AS same
  FROM pg_settings WHERE name = 'outbox.max_attempts';

-- A change counts from the next call on: batch_size and lease_seconds at claim, max_attempts and backoff at the answer.
CREATE FUNCTION pg_temp.claims() RETURNS TABLE (messages bigint, seconds numeric) LANGUAGE sql AS $$
  SELECT count(*), ceil(max(extract(epoch FROM leased_until - clock_timestamp()))) FROM outbox.claim('worker')
$$;
SELECT count(outbox.append('settings', 'e', to_jsonb(n))) FROM generate_series(1, 100) AS n;
SELECT * FROM pg_temp.claims();
SET outbox.batch_size = 4;
SET outbox.lease_seconds = 10;
SELECT * FROM pg_temp.claims();
BEGIN;
SET LOCAL outbox.batch_size = 2;
SELECT * FROM pg_temp.claims();
ROLLBACK;
SELECT * FROM pg_temp.claims();
SELECT set_config('outbox.batch_size', '7', false);
SELECT * FROM pg_temp.claims();
RESET outbox.batch_size;
RESET outbox.lease_seconds;
CREATE FUNCTION pg_temp.six() RETURNS bigint LANGUAGE sql SET outbox.batch_size = 6 AS $$ SELECT count(*) FROM outbox.claim('worker') $$;
SELECT pg_temp.six();
SELECT count(*) FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('settings', 'e', '1'));
SELECT token FROM outbox.claim('worker') \gset
SET outbox.backoff_seconds = 200;
SELECT outbox.fail(:'token');
SELECT state, ceil(extract(epoch FROM available_at - clock_timestamp())) AS due_in FROM outbox.message;
UPDATE outbox.delivery SET available_at = clock_timestamp();
SET outbox.backoff_max_seconds = 300;
SELECT outbox.fail(token) FROM outbox.claim('worker');
SELECT state, ceil(extract(epoch FROM available_at - clock_timestamp())) AS due_in FROM outbox.message;
UPDATE outbox.delivery SET available_at = clock_timestamp();
SELECT token FROM outbox.claim('worker') \gset
SET outbox.max_attempts = 3;
SELECT outbox.fail(:'token');
RESET outbox.backoff_seconds;
RESET outbox.backoff_max_seconds;
RESET outbox.max_attempts;

-- What is set for a topic goes before the setting, and is for that topic only.
TRUNCATE outbox.envelope, outbox.delivery;
INSERT INTO outbox.topic (topic, max_attempts, backoff_seconds, backoff_max_seconds, lease_seconds, batch_size)
VALUES ('settings own', 3, 5, 7, 33, 3);
SELECT count(outbox.append(topic, 'e', to_jsonb(n))) FROM unnest('{settings,settings own}'::text[]) AS topic, generate_series(1, 4) AS n;
SELECT t.topic, count(*), ceil(max(extract(epoch FROM leased_until - clock_timestamp()))) AS seconds
  FROM unnest('{settings,settings own}'::text[]) AS t (topic), LATERAL outbox.claim('worker', t.topic) GROUP BY 1 ORDER BY 1;
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT topic, attempts, outbox.fail(token), count(*) FROM outbox.claim('worker') WHERE payload <> '4' GROUP BY 1, 2, 3 ORDER BY 1;
SELECT topic, state, count(*), max(ceil(extract(epoch FROM available_at - clock_timestamp()))) AS due_in
  FROM outbox.message WHERE payload <> '4' GROUP BY 1, 2 ORDER BY 1, 2;
UPDATE outbox.delivery SET available_at = clock_timestamp();
SELECT topic, attempts, outbox.fail(token), count(*) FROM outbox.claim('worker') WHERE payload <> '4' GROUP BY 1, 2, 3 ORDER BY 1;
