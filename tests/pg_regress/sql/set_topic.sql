-- set_topic: overrides per topic, checked, all or none, effective at the next call.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT outbox.set_topic(topic => 't', settings => '{"max_attempts": 2, "backoff_seconds": 10, "block_on_dead": true}');
SELECT outbox.set_topic('t', '{"backoff_max_seconds": 15, "lease_seconds": 100, "batch_size": 2, "retention_days": 1}');
TABLE outbox.topic;
-- null removes; what is not named stays; nothing named, nothing done.
SELECT outbox.set_topic('t', '{"retention_days": null, "block_on_dead": null, "batch_size": 3.0}');
SELECT outbox.set_topic('t', '{}'), outbox.set_topic('u', '{}');
TABLE outbox.topic;
-- A pause is none of its business.
SELECT outbox.pause('t');
SELECT outbox.set_topic('t', '{"batch_size": 2}');
SELECT outbox.resume('t');
TABLE outbox.topic;

-- They count from the next call on.
SELECT count(outbox.append('t', 'e', to_jsonb(n))) FROM generate_series(1, 5) AS n;
SELECT payload, round(extract(epoch FROM leased_until - clock_timestamp())) AS lease FROM outbox.claim('worker', 't');
SELECT payload, outbox.fail(token) FROM outbox.claim('worker', 't', batch_size => 1);
SELECT payload, round(extract(epoch FROM available_at - clock_timestamp())) AS backoff FROM outbox.message WHERE state = 'waiting';
SELECT outbox.set_topic('t', '{"backoff_seconds": 20, "max_attempts": null, "batch_size": null, "lease_seconds": 10}');
SELECT payload, round(extract(epoch FROM leased_until - clock_timestamp())) AS lease,
       outbox.fail(token), outbox.append('t', 'e', '6') IS NOT NULL AS appended FROM outbox.claim('worker', 't', batch_size => 1);
SELECT payload, round(extract(epoch FROM available_at - clock_timestamp())) AS backoff FROM outbox.message WHERE state = 'waiting' ORDER BY payload;
SELECT payload FROM outbox.claim('worker', 't');
-- A message whose attempts are used up is dead; with the limit raised it is not.
UPDATE outbox.delivery SET attempts = 8, leased_until = clock_timestamp() WHERE lease IS NOT NULL;
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
SELECT outbox.set_topic('t', '{"max_attempts": 9}');
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
SELECT attempts, count(*) FROM outbox.claim('worker', 't') GROUP BY attempts;
-- Retention of its own.
SELECT count(outbox.append('kept', 'e', '1')), count(outbox.append('t', 'e', '7'));
SELECT count(outbox.complete(token)) FROM outbox.claim('worker');
UPDATE outbox.receipt SET delivered_at = now() - interval '3 days';
UPDATE outbox.envelope SET occurred_at = now() - interval '3 days';
SELECT outbox.set_topic('t', '{"retention_days": 2}');
SELECT outbox.purge();
SELECT topic FROM outbox.message WHERE state = 'delivered';

-- Every value at the borders of its range, just outside, and of wrong types. What is refused changes nothing.
CREATE FUNCTION pg_temp.try(topic text, settings jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  message text;
  hint text;
BEGIN
  PERFORM outbox.set_topic(topic, settings);
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
  RETURN concat_ws(' | ', SQLSTATE, message, nullif(hint, ''));
END $$;
SELECT name, value, pg_temp.try('borders', jsonb_build_object(name, value))
  FROM (VALUES (1, 'max_attempts', 1, 50), (2, 'backoff_seconds', 1, 3600), (3, 'backoff_max_seconds', 1, 86400), (4, 'lease_seconds', 10, 3600),
               (5, 'batch_size', 1, 500), (6, 'retention_days', 1, 3650)) AS r (n, name, least, most),
       unnest(ARRAY[least - 1, least, most, most + 1]) AS value ORDER BY n, value;
TABLE outbox.topic;
SELECT left(settings::text, 40) AS settings, pg_temp.try('t', settings) FROM unnest('{
  "{\"max_attempts\": \"5\"}", "{\"max_attempts\": 1.5}", "{\"max_attempts\": true}", "{\"max_attempts\": [5]}", "{\"max_attempts\": {}}",
  "{\"max_attempts\": 1e400}", "{\"max_attempts\": -5}", "{\"max_attempts\": 2147483648}",
  "{\"block_on_dead\": 1}", "{\"block_on_dead\": \"true\"}", "{\"Max_attempts\": 5}", "{\"paused\": true}", "{\"topic\": \"x\"}", "{\"\": 1}",
  "{\"batch_size\": 7, \"lease_seconds\": 9}", "[]", "[1]", "1", "\"secret\"", "null"}'::jsonb[]) AS settings;
SELECT pg_temp.try('t', NULL), pg_temp.try(NULL, '{}'), pg_temp.try('', '{"batch_size": 1}');
SELECT * FROM outbox.topic WHERE topic = 't';
