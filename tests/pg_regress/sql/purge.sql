-- purge: deletes what is over and past its retention, nothing else, however old.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
-- What has ended, ended so long before.
CREATE PROCEDURE pg_temp.age(since interval) LANGUAGE sql AS $$
  UPDATE outbox.envelope SET occurred_at = clock_timestamp() - since;
  UPDATE outbox.receipt SET delivered_at = clock_timestamp() - since;
  UPDATE outbox.delivery SET ended_at = clock_timestamp() - since WHERE ended_at IS NOT NULL;
$$;

-- Nothing is past its retention of 7 days, of 24 hours each; then everything that is over is.
SELECT outbox.purge();
SELECT count(outbox.append('purge', 'e', to_jsonb(n), pg_temp.id(n), CASE n WHEN 5 THEN now() + interval '1 hour' END))
  FROM generate_series(1, 7) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.fail(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(*) FROM outbox.claim('worker', batch_size => 2);
UPDATE outbox.delivery SET leased_until = clock_timestamp()
 WHERE seq = (SELECT max(seq) FROM outbox.delivery WHERE leased_until IS NOT NULL);
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '10 years';
CALL pg_temp.age('167 hours 59 minutes');
SELECT outbox.purge();
CALL pg_temp.age('168 hours 1 second');
SELECT payload, state, attempts FROM outbox.message ORDER BY payload;
SELECT outbox.purge();
SELECT payload, state, attempts FROM outbox.message ORDER BY payload;
SELECT outbox.purge();
-- Nothing of a purged message is left.
SELECT (SELECT count(*) FROM outbox.envelope) AS envelopes, (SELECT count(*) FROM outbox.delivery) AS deliveries,
       (SELECT count(*) FROM outbox.receipt) AS receipts;
SELECT payload FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery;

-- At most max_messages per call, delivered and dead together; repeat until 0.
SELECT count(outbox.append('purge', 'e', to_jsonb(n))) FROM generate_series(1, 10) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', batch_size => 5);
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker', batch_size => 5);
CALL pg_temp.age('1 year');
SELECT outbox.purge(max_messages => 1);
SELECT count(*) FROM outbox.message;
SELECT outbox.purge(6);
SELECT outbox.purge(6);
SELECT outbox.purge(6);
SELECT count(*) FROM outbox.message;

-- Messages completed together go one by one all the same, whether their numbers are consecutive or not.
SELECT count(outbox.append('purge', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT count(*) FROM outbox.append_batch('purge',
       (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', n)) FROM generate_series(4, 6) AS n));
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 3)));
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker')));
SELECT last - first AS reach, seqs IS NULL AS consecutive FROM outbox.receipt ORDER BY first;
CALL pg_temp.age('1 year');
SELECT outbox.purge(2);
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.purge(2);
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT count(*) FROM outbox.receipt;
SELECT outbox.purge(2);
SELECT outbox.purge(2);
SELECT count(*) FROM outbox.receipt;

-- The topic's own retention goes first, shorter or longer than the setting.
INSERT INTO outbox.topic (topic, retention_days) VALUES ('purge soon', 1), ('purge late', 3650);
SELECT count(outbox.append(topic, 'e', to_jsonb(n)))
  FROM unnest('{purge,purge soon,purge late}'::text[]) AS topic, generate_series(1, 2) AS n;
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker') WHERE payload = '1'));
SELECT count(*) FROM outbox.receipt;
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker');
CALL pg_temp.age('25 hours');
SELECT outbox.purge();
SELECT topic, array_agg(state ORDER BY state) FROM outbox.message GROUP BY topic ORDER BY topic;
CALL pg_temp.age('3649 days');
SELECT outbox.purge();
SELECT topic, array_agg(state ORDER BY state) FROM outbox.message GROUP BY topic ORDER BY topic;
CALL pg_temp.age('3651 days');
SELECT outbox.purge();
SELECT count(*) FROM outbox.message;
SELECT count(*) FROM outbox.receipt;
TRUNCATE outbox.topic;

-- It records the deaths that nobody has met: dead since the lease ran out, and past retention if that is long ago.
SET outbox.max_attempts = 1;
SELECT count(outbox.append('purge', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT count(*) FROM outbox.claim('worker', batch_size => 1);
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 year' WHERE leased_until IS NOT NULL;
SELECT token, payload FROM outbox.claim('worker', batch_size => 1) \gset
UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 hour' WHERE leased_until IS NOT NULL;
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.purge();
SELECT payload, state, last_error, dead_at <= clock_timestamp() - interval '1 hour' AS dead_since_then FROM outbox.message;
SELECT outbox.complete(:'token');
RESET outbox.max_attempts;
TRUNCATE outbox.envelope, outbox.delivery;

-- Markers of consume_once: after 30 days, never while their message is stored; they are not counted.
SELECT outbox.append('purge', 'e', '{}', pg_temp.id(1));
SELECT count(outbox.consume_once('consumer', pg_temp.id(n))) FROM generate_series(1, 4) AS n;
UPDATE outbox.processed SET processed_at = clock_timestamp() -
       CASE WHEN message_id = pg_temp.id(3) THEN interval '719 hours' ELSE interval '721 hours' END;
SELECT outbox.purge(1);
SELECT outbox.purge();
SELECT right(message_id::text, 1) AS id FROM outbox.processed ORDER BY id;
SELECT outbox.consume_once('consumer', pg_temp.id(1)), outbox.consume_once('consumer', pg_temp.id(2));
-- With its message the marker goes, at the latest with the next call.
SELECT count(outbox.complete(token)) FROM outbox.claim('worker');
CALL pg_temp.age('1 year');
SELECT outbox.purge();
SELECT outbox.purge();
SELECT right(message_id::text, 1) AS id FROM outbox.processed ORDER BY id;

-- Rolled back, nothing is gone.
SELECT count(outbox.append('purge', 'e', '1'));
SELECT count(outbox.complete(token)) FROM outbox.claim('worker');
CALL pg_temp.age('1 year');
BEGIN;
SELECT outbox.purge();
ROLLBACK;
SELECT state FROM outbox.message;
