-- complete_batch: an answer for each token, in input order.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE TEMP TABLE lease (n integer, token uuid);

-- Backwards, two topics, one twice, one delivered already, one given back, one that is no token.
SELECT count(outbox.append('batch ' || n % 2, 'e', to_jsonb(n))) FROM generate_series(1, 6) AS n;
INSERT INTO lease SELECT payload::int, token FROM outbox.claim('worker', batch_size => 5);
SELECT n, outbox.complete(token) FROM lease WHERE n = 2;
SELECT n, outbox.release(token) FROM lease WHERE n = 3;
INSERT INTO lease VALUES (0, '00000000-0000-4000-8000-000000000000');
SELECT place, n, completed
  FROM outbox.complete_batch(tokens => (SELECT array_agg(token ORDER BY place) FROM unnest('{5,4,0,5,3,1,2,4}'::int[])
                                        WITH ORDINALITY AS t (n, place) JOIN lease USING (n)))
       WITH ORDINALITY AS b (token, completed, place) JOIN lease USING (token) ORDER BY place;
SELECT payload, topic, state, attempts, lease_owner, delivered_at IS NOT NULL AS delivered FROM outbox.message ORDER BY payload;
-- All of them once more: all stale.
SELECT completed, count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease)) GROUP BY completed;
-- The names of its columns.
SELECT token, completed FROM outbox.complete_batch('{00000000-0000-4000-8000-000000000000}');

-- None, an array that does not start at 1, and the largest.
SELECT * FROM outbox.complete_batch('{}');
SELECT completed FROM outbox.complete_batch('[5:6]={00000000-0000-4000-8000-000000000001,00000000-0000-4000-8000-000000000002}');
SELECT completed, count(*) FROM outbox.complete_batch((SELECT array_agg(gen_random_uuid()) FROM generate_series(1, 10000)))
 GROUP BY completed;
SELECT completed, count(*) FROM outbox.complete_batch(array_fill((SELECT token FROM outbox.claim('worker', batch_size => 1)), '{10000}'))
 GROUP BY completed ORDER BY completed;

-- Leases of many calls; those that have run out count, unless somebody has claimed the message since.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, lease;
SELECT count(outbox.append('batch', 'e', to_jsonb(n))) FROM generate_series(1, 9) AS n;
INSERT INTO lease SELECT payload::int, token FROM generate_series(1, 3) AS call, outbox.claim('worker ' || call, batch_size => 2);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE leased_until IS NOT NULL;
SELECT payload, attempts FROM outbox.claim('thief', batch_size => 2);
SELECT n, completed FROM outbox.complete_batch((SELECT array_agg(token) FROM lease)) JOIN lease USING (token) ORDER BY n;
SELECT payload, state, attempts, lease_owner FROM outbox.message ORDER BY payload;

-- Rolled back, nothing was answered.
TRUNCATE lease;
INSERT INTO lease SELECT payload::int, token FROM outbox.claim('worker');
BEGIN;
SELECT completed, count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease)) GROUP BY completed;
ROLLBACK;
SELECT completed, count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease)) GROUP BY completed;

-- In the select list.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('batch', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT (outbox.complete_batch(array_agg(token))).completed FROM outbox.claim('worker');

-- Every message finds its own receipt: of the same call, of others that reach over it, or none.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, lease;
SELECT count(*) FROM outbox.append_batch('batch',
       (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', n)) FROM generate_series(1, 6) AS n));
SELECT count(*) FROM outbox.append_batch('batch',
       (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', n)) FROM generate_series(7, 12) AS n));
INSERT INTO lease SELECT payload::int, token FROM outbox.claim('a', batch_size => 9);
INSERT INTO lease SELECT payload::int, token FROM outbox.claim('b', batch_size => 2);
SELECT count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease WHERE n IN (2, 6, 10)));
SELECT count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease WHERE n IN (3, 4, 5)));
SELECT count(*) FROM outbox.complete_batch((SELECT array_agg(token) FROM lease WHERE n IN (1, 8, 11)));
SELECT lease_owner, attempts, last - first AS reach, cardinality(seqs) AS listed FROM outbox.receipt ORDER BY first, last;
SELECT payload, state, lease_owner, attempts FROM outbox.message ORDER BY payload::int;
SELECT payload FROM outbox.message WHERE state = 'delivered'
   AND delivered_at = (SELECT delivered_at FROM outbox.message WHERE payload = '6') ORDER BY payload::int;
