-- Half a message, as a restore in part or an unlogged table leaves it, is nobody's.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE VIEW pg_temp.halves AS
SELECT ok, detail FROM outbox.status WHERE name = 'half messages';

-- An envelope without delivery and receipt is shown to nobody, stays for the time of retention, and is purged.
SELECT count(outbox.append('orphans', 'e', to_jsonb(n), id => pg_temp.id(n))) FROM generate_series(1, 4) AS n;
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 1)));
DELETE FROM outbox.delivery WHERE seq IN (SELECT seq FROM outbox.envelope WHERE payload IN ('2', '3'));
SELECT * FROM pg_temp.halves;
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT topic, ready, oldest_ready_seconds IS NOT NULL AS has_oldest FROM outbox.stats WHERE topic = 'orphans';
SELECT payload FROM outbox.claim('worker');
SELECT outbox.purge();
SELECT outbox.append('orphans', 'e', '"again"', id => pg_temp.id(2)); -- a duplicate while it is stored
SELECT count(*) FROM outbox.envelope;
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '8 days' WHERE payload IN ('2', '4');
SELECT outbox.purge();
SELECT outbox.append('orphans', 'e', '"again"', id => pg_temp.id(2));
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT payload FROM outbox.claim('worker');
-- The topic's own retention counts.
SELECT outbox.set_topic('orphans', '{"retention_days": 3650}');
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '8 days';
SELECT outbox.purge();
SELECT outbox.set_topic('orphans', '{"retention_days": null}');
-- Not in the making: a transaction writes both or none.
BEGIN;
SELECT count(outbox.append('orphans', 'e', '5'));
SELECT outbox.purge();
SELECT payload, state FROM outbox.message ORDER BY payload;
COMMIT;
SELECT * FROM pg_temp.halves;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- While numbers are stored that the sequence has not reached, the rest may be on its way: nothing is purged.
SELECT last_value AS last FROM outbox.arrival \gset
INSERT INTO outbox.envelope (seq, id, occurred_at, topic, type, payload)
SELECT (:last + 10) * 1024 + n, pg_temp.id(n), '2020-01-01', 'orphans', 'e', to_jsonb(n) FROM generate_series(1, 2) AS n;
SELECT outbox.purge();
SELECT * FROM pg_temp.halves;
SELECT name, ok, detail FROM outbox.status WHERE name = 'message numbers';
INSERT INTO outbox.delivery (seq, attempts, place, topic)
SELECT seq, 0, 'r', topic FROM outbox.envelope WHERE payload = '2';
SELECT count(outbox.append('orphans', 'e', '3'));
SELECT payload FROM outbox.claim('worker');
SELECT outbox.purge();
SELECT payload, state FROM outbox.message ORDER BY payload;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- A delivery without an envelope dies when a claim meets it, so that its key goes on; purge takes it as it takes the dead.
SELECT count(outbox.append('orphans', 'e', to_jsonb(n), key => CASE WHEN n < 4 THEN 'k' END)) FROM generate_series(1, 5) AS n;
DELETE FROM outbox.envelope WHERE payload IN ('1', '4');
SELECT payload FROM outbox.claim('worker');
SELECT place, count(*) FROM outbox.delivery GROUP BY place ORDER BY place;
SELECT * FROM pg_temp.halves;
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.redrive('orphans', dry_run => true);
SELECT outbox.redrive('orphans');
SELECT payload FROM outbox.claim('worker');
SELECT outbox.purge();
UPDATE outbox.delivery SET ended_at = ended_at - interval '8 days';
SELECT outbox.purge();
SELECT place, count(*) FROM outbox.delivery GROUP BY place ORDER BY place;
SELECT * FROM pg_temp.halves;
-- A claim that waits passes it over, too.
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT pg_temp.id(1)));
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('orphans', 'e', to_jsonb(n), key => 'k')) FROM generate_series(1, 2) AS n;
DELETE FROM outbox.envelope WHERE payload = '1';
SELECT payload FROM outbox.claim('worker', wait_seconds => 10);
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- A receipt without any envelope goes with the others, past the retention of the setting.
SELECT count(outbox.append('orphans', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker')));
DELETE FROM outbox.envelope WHERE payload IN ('1', '2', '3');
SELECT outbox.purge();
SELECT count(*) FROM outbox.receipt;
SELECT count(outbox.append('orphans', 'e', '4'));
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '8 days';
SELECT outbox.purge();
SELECT count(*) FROM outbox.receipt;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
