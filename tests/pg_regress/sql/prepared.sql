-- prepared: two-phase commit around append, claim, answers and consume_once.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Append: nothing until it is committed, then a message, in the place it was given; rolled back, never one.
BEGIN;
SELECT outbox.append('prepared', 'e', '1', '00000000-0000-4000-8000-000000000001');
PREPARE TRANSACTION 'regress_outbox_1';
BEGIN;
SELECT count(*) FROM outbox.append_batch('prepared', '[{"type": "e", "payload": 2}]');
PREPARE TRANSACTION 'regress_outbox_2';
SELECT count(outbox.append('prepared', 'e', '3'));
SELECT payload FROM outbox.claim('worker', 'prepared');
COMMIT PREPARED 'regress_outbox_1';
ROLLBACK PREPARED 'regress_outbox_2';
SELECT outbox.append('prepared', 'e', '4', '00000000-0000-4000-8000-000000000001');
SELECT count(outbox.append('prepared', 'e', '5'));
SELECT payload FROM outbox.claim('worker', 'prepared');
SELECT payload, state FROM outbox.message ORDER BY payload;
TRUNCATE outbox.envelope, outbox.delivery;

-- Claim: nobody else gets it, or waits for it, until it is rolled back.
SELECT count(outbox.append('prepared', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
BEGIN;
SELECT token FROM outbox.claim('two-phase', batch_size => 1) \gset
PREPARE TRANSACTION 'regress_outbox_1';
SELECT payload FROM outbox.claim('worker', 'prepared');
ROLLBACK PREPARED 'regress_outbox_1';
SELECT outbox.complete(:'token');
SELECT payload, attempts FROM outbox.claim('worker', 'prepared');
TRUNCATE outbox.envelope, outbox.delivery;

-- Answers, and what consume_once has marked.
SELECT count(outbox.append('prepared', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
BEGIN;
SELECT outbox.complete(:'token'), outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001');
PREPARE TRANSACTION 'regress_outbox_1';
SELECT payload, state FROM outbox.message ORDER BY payload;
COMMIT PREPARED 'regress_outbox_1';
SELECT outbox.complete(:'token'), outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001');
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
BEGIN;
SELECT outbox.fail(:'token', 'error'), outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000002');
PREPARE TRANSACTION 'regress_outbox_1';
ROLLBACK PREPARED 'regress_outbox_1';
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload;
SELECT outbox.complete(:'token'), outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000002');

-- retry_dead and purge.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('prepared', 'e', to_jsonb(n), ('00000000-0000-4000-8000-00000000000' || n)::uuid)) FROM generate_series(1, 2) AS n;
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker');
UPDATE outbox.delivery SET ended_at = ended_at - interval '1 year' WHERE seq = (SELECT max(seq) FROM outbox.delivery);
BEGIN;
SELECT outbox.retry_dead('00000000-0000-4000-8000-000000000001'), outbox.purge();
PREPARE TRANSACTION 'regress_outbox_1';
SELECT payload, state FROM outbox.message ORDER BY payload;
COMMIT PREPARED 'regress_outbox_1';
SELECT payload, state FROM outbox.message ORDER BY payload;

-- What a prepared transaction holds, purge skips and claims pass over, without waiting for it.
SELECT outbox.abandon(token) FROM outbox.claim('worker');
UPDATE outbox.delivery SET ended_at = ended_at - interval '1 year';
SELECT count(outbox.append('prepared', 'e', to_jsonb(n))) FROM generate_series(3, 4) AS n;
BEGIN;
SELECT outbox.retry_dead('00000000-0000-4000-8000-000000000001');
SELECT payload FROM outbox.claim('two-phase', batch_size => 2);
PREPARE TRANSACTION 'regress_outbox_1';
SELECT outbox.purge();
SELECT payload FROM outbox.claim('worker');
ROLLBACK PREPARED 'regress_outbox_1';
SELECT outbox.purge();
SELECT payload, attempts FROM outbox.claim('worker');
