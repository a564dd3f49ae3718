-- consume_once: true once per committed pair of consumer and message.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

SELECT clock_timestamp() AS before \gset
SELECT outbox.consume_once(consumer => 'mailer', message_id => '00000000-0000-4000-8000-000000000001');
SELECT consumer, message_id, processed_at BETWEEN :'before' AND clock_timestamp() AS now FROM outbox.processed;
SELECT outbox.consume_once('mailer', '00000000-0000-4000-8000-000000000001');
-- Another message, another consumer; consumers are compared byte by byte.
SELECT outbox.consume_once('mailer', '00000000-0000-4000-8000-000000000002'),
       outbox.consume_once('ledger', '00000000-0000-4000-8000-000000000001'),
       outbox.consume_once('Mailer', '00000000-0000-4000-8000-000000000001'),
       outbox.consume_once('mailer ', '00000000-0000-4000-8000-000000000001'),
       outbox.consume_once(U&'m\00E4iler', '00000000-0000-4000-8000-000000000001'),
       outbox.consume_once(U&'ma\0308iler', '00000000-0000-4000-8000-000000000001');
SELECT count(*), count(DISTINCT processed_at) AS times FROM outbox.processed;

-- Twice in one statement.
SELECT n, outbox.consume_once('twice', '00000000-0000-4000-8000-000000000001') FROM generate_series(1, 2) AS n;

-- Marker and effect vanish together: with the transaction, with the savepoint, with the exception.
CREATE TEMP TABLE mail (recipient text);
BEGIN;
INSERT INTO mail SELECT 'a' WHERE outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001');
SELECT outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001') AS again;
ROLLBACK;
BEGIN;
SAVEPOINT effect;
INSERT INTO mail SELECT 'b' WHERE outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001');
ROLLBACK TO effect;
COMMIT;
DO $$
BEGIN
  INSERT INTO mail SELECT 'c' WHERE outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001');
  RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
END $$;
SELECT count(*) FROM mail;
BEGIN;
INSERT INTO mail SELECT 'd' WHERE outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001');
COMMIT;
INSERT INTO mail SELECT 'e' WHERE outbox.consume_once('rollback', '00000000-0000-4000-8000-000000000001');
SELECT * FROM mail;

-- In the isolation levels with one snapshot for all statements too.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.consume_once('repeatable', '00000000-0000-4000-8000-000000000001');
SELECT outbox.consume_once('repeatable', '00000000-0000-4000-8000-000000000001');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.consume_once('repeatable', '00000000-0000-4000-8000-000000000001');
SELECT outbox.consume_once('serializable', '00000000-0000-4000-8000-000000000001');
COMMIT;

-- A redelivered message has no second effect.
SELECT outbox.append('consume', 'e', '{}', '00000000-0000-4000-8000-000000000003');
SELECT id, outbox.consume_once('worker', id) AS first, outbox.fail(token, NULL, '2000-01-01') FROM outbox.claim('w');
SELECT id, outbox.consume_once('worker', id) AS first, outbox.complete(token) FROM outbox.claim('w');
