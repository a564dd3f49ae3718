-- pause, resume: claims skip a paused topic, appends go on, leases can be answered.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT count(outbox.append('paused', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT count(outbox.append('other', 'e', to_jsonb(n))) FROM generate_series(3, 4) AS n;
SELECT token FROM outbox.claim('worker', 'paused', batch_size => 1) \gset
-- True if it changed.
SELECT outbox.pause(topic => 'paused'), outbox.pause('paused');
TABLE outbox.topic;
SELECT payload FROM outbox.claim('worker', 'paused');
SELECT payload FROM outbox.claim('worker', batch_size => 1);
SELECT outbox.append('paused', 'e', '5') IS NOT NULL AS appended;
SELECT payload, state FROM outbox.message ORDER BY payload;
-- Its lease can be answered, in every way.
SELECT outbox.extend(:'token', 60) > now() AS extended;
SELECT outbox.fail(:'token', 'no', '2000-01-01'), outbox.complete(:'token');
SELECT payload FROM outbox.claim('worker', 'paused') UNION ALL SELECT payload FROM outbox.claim('worker');
SELECT payload FROM outbox.claim('worker');
-- Also what is due, given back, revived, or was leased too long is not claimed.
SELECT outbox.resume('paused'), outbox.resume(topic => 'paused');
SELECT payload, attempts, token FROM outbox.claim('worker', 'paused', batch_size => 1) \gset
SELECT :'payload' AS payload, :'attempts' AS attempts;
SELECT outbox.pause('paused');
SELECT outbox.release(:'token');
SELECT payload FROM outbox.claim('worker');
SELECT outbox.resume('paused');
SELECT payload FROM outbox.claim('worker', batch_size => 2) AS c ORDER BY payload;
SELECT outbox.pause('paused');
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE topic = 'paused' AND lease IS NOT NULL;
SELECT payload FROM outbox.claim('worker');
SELECT outbox.resume('paused');
SELECT payload, attempts FROM outbox.claim('worker') ORDER BY payload;

-- Nothing to resume; a topic may be paused before its first message.
SELECT outbox.resume('unheard of');
SELECT outbox.pause('new'), outbox.append('new', 'e', '6') IS NOT NULL AS appended;
SELECT payload FROM outbox.claim('worker');
-- Rolled back, also to a savepoint, it has not happened.
BEGIN;
SELECT outbox.resume('new');
SELECT payload FROM outbox.claim('worker');
ROLLBACK;
SELECT payload FROM outbox.claim('worker');
BEGIN;
SAVEPOINT a;
SELECT outbox.resume('new');
ROLLBACK TO a;
SELECT payload FROM outbox.claim('worker');
COMMIT;
BEGIN;
SAVEPOINT a;
SELECT outbox.pause('other'), outbox.append('other', 'e', '7') IS NOT NULL AS appended;
SELECT payload FROM outbox.claim('worker');
ROLLBACK TO a;
SELECT outbox.append('other', 'e', '8') IS NOT NULL AS appended;
SELECT payload FROM outbox.claim('worker');
COMMIT;
SELECT outbox.resume('new');
SELECT payload FROM outbox.claim('worker');
-- Many due messages of a paused topic do not keep a claim from those of another one.
SELECT outbox.pause('paused');
SELECT count(*) FROM outbox.append_batch('paused', (SELECT jsonb_agg('{"type": "e", "payload": 1, "available_at": "2100-01-01T00:00:00Z"}'::jsonb)
                                                      FROM generate_series(1, 2000)));
SELECT outbox.append('other', 'e', '9', available_at => '2100-01-01') IS NOT NULL AS appended;
UPDATE outbox.delivery SET available_at = now() - interval '0.2 s' WHERE place = 'w' AND topic = 'paused';
UPDATE outbox.delivery SET available_at = now() - interval '0.1 s' WHERE place = 'w' AND topic = 'other';
SELECT payload FROM outbox.claim('worker');
SELECT outbox.resume('paused');
SELECT count(*) FROM outbox.claim('worker', batch_size => 500);
-- Errors.
SELECT outbox.pause(NULL);
SELECT outbox.resume(NULL);
SELECT outbox.pause(' ');
SELECT outbox.resume(repeat('x', 256));
