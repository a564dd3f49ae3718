-- Message numbers: a sequence that was put back, or a table that came without it, repeats none.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE PROCEDURE pg_temp.append(messages integer) LANGUAGE sql AS
$$ SELECT outbox.append('numbers', 'e', to_jsonb(n)) FROM generate_series(1, messages) AS n $$;
CREATE PROCEDURE pg_temp.deliver(messages integer) LANGUAGE sql AS
$$ SELECT outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => messages))) $$;
CREATE PROCEDURE pg_temp.age() LANGUAGE sql AS $$
  UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
  UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
  UPDATE outbox.delivery SET ended_at = ended_at - interval '1 year' WHERE ended_at IS NOT NULL;
$$;
CREATE VIEW pg_temp.stored AS SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;

-- Whatever puts the sequence back, also in a session that has appended before: numbers go on above what is stored.
CALL pg_temp.append(500);
CALL pg_temp.deliver(250);
ALTER SEQUENCE outbox.arrival RESTART;
CALL pg_temp.append(1);
SELECT count(*), count(DISTINCT seq) FROM outbox.envelope;
SELECT payload, row_number() OVER (ORDER BY seq DESC) FROM outbox.envelope ORDER BY seq DESC LIMIT 2;
SELECT setval('outbox.arrival', 1);
CALL pg_temp.append(1);
BEGIN;
SELECT setval('outbox.arrival', 1, false);
SELECT count(*) FROM outbox.append_batch('numbers', (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', n))
                                                       FROM generate_series(1, 3000) AS n));
ROLLBACK;
TRUNCATE outbox.envelope RESTART IDENTITY;
TRUNCATE outbox.delivery, outbox.receipt;

-- A receipt reaches further than any message that is stored: as numbers go on above it, it covers no new one.
CALL pg_temp.append(10);
CALL pg_temp.deliver(10);
DELETE FROM outbox.envelope;
ALTER SEQUENCE outbox.arrival RESTART;
CALL pg_temp.append(1);
SELECT count(*) FROM outbox.envelope JOIN outbox.receipt ON seq <= last;
SELECT * FROM pg_temp.stored;
CALL pg_temp.age();
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
CALL pg_temp.deliver(1);
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- A number that a receipt covers all the same is not delivered by it, and not purged with it.
CALL pg_temp.append(3);
CALL pg_temp.deliver(3);
SELECT seq AS middle FROM outbox.envelope ORDER BY seq OFFSET 1 LIMIT 1 \gset
INSERT INTO outbox.delivery (seq, attempts, place, topic) VALUES (:middle, 0, 'r', 'numbers');
SELECT payload, state, attempts, lease_owner, delivered_at IS NULL AS undelivered FROM outbox.message ORDER BY payload;
CALL pg_temp.age();
SELECT outbox.purge();
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT count(*) FROM outbox.receipt;
SELECT payload, attempts FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- What purge leaves of a receipt covers exactly what is left.
SELECT outbox.set_topic('numbers short', '{"retention_days": 1}');
SELECT count(outbox.append(topic, 'e', to_jsonb(n)))
  FROM generate_series(1, 3) AS n, unnest('{numbers,numbers short}'::text[]) AS topic;
SELECT count(*) FROM outbox.append_batch('numbers short', '[{"type": "e", "payload": 4}, {"type": "e", "payload": 5}]');
CALL pg_temp.deliver(8);
SELECT count(*) AS receipts, sum(cardinality(seqs)) AS listed FROM outbox.receipt;
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '2 days';
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '2 days';
SELECT outbox.purge();
SELECT r.seqs = ARRAY (SELECT seq FROM outbox.envelope ORDER BY seq) AS listed, first = min(seq) AS first, last = max(seq) AS last
  FROM outbox.receipt AS r, outbox.envelope GROUP BY r.seqs, first, last;
SELECT topic, state, count(*) FROM outbox.message GROUP BY topic, state;
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
SELECT outbox.purge(1);
SELECT outbox.purge(1);
SELECT last - first AS reach, seqs FROM outbox.receipt;
SELECT outbox.purge(1);
SELECT outbox.purge(1);
SELECT count(*) FROM outbox.receipt;
SELECT outbox.set_topic('numbers short', '{"retention_days": null}');

-- A sequence of another shape is refused, and says how to get it back.
\set shape 'AS bigint INCREMENT BY 1 MINVALUE 1 MAXVALUE 1125899906842623 CACHE 1 NO CYCLE'
ALTER SEQUENCE outbox.arrival INCREMENT BY 5;
CALL pg_temp.append(1);
ALTER SEQUENCE outbox.arrival :shape;
ALTER SEQUENCE outbox.arrival INCREMENT BY -1;
CALL pg_temp.append(1);
SELECT count(*) FROM outbox.claim('worker');
SELECT outbox.purge();
ALTER SEQUENCE outbox.arrival :shape;
ALTER SEQUENCE outbox.arrival CACHE 100;
CALL pg_temp.append(1);
ALTER SEQUENCE outbox.arrival :shape;
ALTER SEQUENCE outbox.arrival NO MAXVALUE CYCLE;
CALL pg_temp.append(1);
ALTER SEQUENCE outbox.arrival :shape;
CALL pg_temp.append(1);
SELECT * FROM pg_temp.stored;
-- Its end is core's error; so is a stored number above it.
\set VERBOSITY sqlstate
SELECT last_value AS before FROM outbox.arrival \gset
SELECT setval('outbox.arrival', 1125899906842623);
CALL pg_temp.append(1);
SELECT setval('outbox.arrival', 1125899906842622);
CALL pg_temp.append(1);
SELECT attempts FROM outbox.claim('worker', batch_size => 2);
CALL pg_temp.append(1);
TRUNCATE outbox.envelope, outbox.delivery;
INSERT INTO outbox.envelope (seq, id, occurred_at, topic, type, payload) VALUES (1152921504606846976, pg_temp.id(1), now(), 't', 't', '1');
\set VERBOSITY default
SELECT setval('outbox.arrival', :before) = :before AS back;
\c
SELECT outbox.append('numbers', 'e', '1');
SELECT last_value = :before + 1 AS is_next FROM outbox.arrival;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
