-- publications: where core refuses an update or delete that subscribers could not follow, so do we.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
\set SHOW_CONTEXT never
SET client_min_messages = error; -- wal_level may be too low for a subscription
CREATE PUBLICATION p FOR TABLE outbox.delivery, outbox.envelope, outbox.receipt;
RESET client_min_messages;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
SELECT count(outbox.append('t', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('w', batch_size => 1);

ALTER TABLE outbox.delivery REPLICA IDENTITY NOTHING;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
SELECT count(outbox.append('t', 'e', '3'));
SELECT * FROM outbox.claim('w');
DELETE FROM outbox.delivery;
ALTER TABLE outbox.delivery REPLICA IDENTITY FULL;
CREATE TEMP TABLE held AS SELECT * FROM outbox.claim('w');
ALTER TABLE outbox.delivery REPLICA IDENTITY NOTHING;
SELECT outbox.complete(token) FROM held;
SELECT outbox.fail(token) FROM held;
ALTER PUBLICATION p SET (publish = 'insert');
SELECT outbox.complete(token) FROM held WHERE payload = '2';
ALTER PUBLICATION p SET (publish = 'insert, update, delete');
ALTER TABLE outbox.delivery REPLICA IDENTITY DEFAULT;
SELECT outbox.complete(token) FROM held;
DROP PUBLICATION p;
DROP TABLE held;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
