-- A clock that was wrong for a moment stops nothing: ahead counts as old, back as long ago.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE VIEW pg_temp.stored AS SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;

-- Appended while it was ahead, each message that the search may meet: those before and after are purged all the same.
SELECT count(outbox.append('clock', 'e', to_jsonb(n))) FROM generate_series(1, 64) AS n;
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 63)));
SELECT count(outbox.append('clock', 'young', to_jsonb(n))) FROM generate_series(1, 8) AS n;
SELECT count(*) FROM outbox.claim('worker', batch_size => 500);
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '8 days';
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '8 days' WHERE type = 'e';
UPDATE outbox.envelope SET occurred_at = occurred_at + interval '10 years' WHERE payload IN ('64', '32', '16', '48') AND type = 'e';
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Ended while it was ahead, by less than the retention and by more.
SELECT count(outbox.append('clock', 'e', to_jsonb(n))) FROM generate_series(1, 4) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', batch_size => 2);
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker', batch_size => 2);
SELECT count(outbox.consume_once('mail', pg_temp.id(n))) FROM generate_series(1, 2) AS n;
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
UPDATE outbox.receipt SET delivered_at = delivered_at + interval '6 days' WHERE first = (SELECT min(first) FROM outbox.receipt);
UPDATE outbox.receipt SET delivered_at = delivered_at + interval '8 days' WHERE first = (SELECT max(first) FROM outbox.receipt);
UPDATE outbox.delivery SET ended_at = ended_at + interval '6 days' WHERE seq = (SELECT min(seq) FROM outbox.delivery);
UPDATE outbox.delivery SET ended_at = ended_at + interval '8 days' WHERE seq = (SELECT max(seq) FROM outbox.delivery);
UPDATE outbox.processed SET processed_at = processed_at + interval '29 days' WHERE message_id = pg_temp.id(1);
UPDATE outbox.processed SET processed_at = processed_at + interval '31 days' WHERE message_id = pg_temp.id(2);
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
SELECT message_id FROM outbox.processed;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed;
