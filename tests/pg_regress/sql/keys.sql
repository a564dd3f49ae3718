-- Order by key: messages of one topic and key are delivered one after another, in arrival order.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE TEMP TABLE lease (message text, attempts int, token uuid);
\pset tuples_only on
\pset format unaligned
-- Appends messages such as a1: the letter is the key, - for none.
CREATE FUNCTION pg_temp.add(messages text, topic text DEFAULT 'orders') RETURNS bigint LANGUAGE sql AS $$
    SELECT count(outbox.append($2, 'e', to_jsonb(m), key => nullif(left(m, 1), '-'))) FROM regexp_split_to_table($1, ' ') AS m $$;
-- Claims so many and shows them, with their attempts; the tokens are kept.
CREATE FUNCTION pg_temp.take(count int DEFAULT 100, topic text DEFAULT 'orders') RETURNS text LANGUAGE sql AS $$
    WITH claimed AS (INSERT INTO lease SELECT payload #>> '{}', attempts, token FROM outbox.claim('worker', $2, $1) RETURNING *)
    SELECT coalesce(string_agg(message || '/' || attempts, ' '), '(none)') FROM claimed $$;
CREATE FUNCTION pg_temp.token(text) RETURNS uuid LANGUAGE sql AS $$
    SELECT token FROM lease WHERE message = $1 ORDER BY ctid DESC LIMIT 1 $$;
CREATE FUNCTION pg_temp.done(messages text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(CASE completed WHEN true THEN 'yes' ELSE 'stale' END, ' ')
      FROM outbox.complete_batch((SELECT array_agg(pg_temp.token(m)) FROM regexp_split_to_table($1, ' ') AS m)) $$;
-- Lets leases run out.
CREATE FUNCTION pg_temp.expire(messages text) RETURNS void LANGUAGE sql AS $$
    UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 second'
     WHERE seq IN (SELECT seq FROM outbox.envelope WHERE payload #>> '{}' = ANY (regexp_split_to_array($1, ' '))) $$;
CREATE TEMP VIEW messages AS
    SELECT string_agg(format('%s %s/%s', payload #>> '{}', CASE place WHEN 'k' THEN 'parked' ELSE state END, m.attempts), ', ' ORDER BY e.seq) AS messages
      FROM outbox.message AS m JOIN outbox.envelope AS e USING (id, payload) LEFT JOIN outbox.delivery AS d USING (seq)
     WHERE state <> 'delivered';
-- Parked messages without an older one that is not over: there is none, ever.
CREATE TEMP VIEW stuck AS
    SELECT k.seq FROM outbox.delivery AS k
     WHERE k.place = 'k' AND NOT EXISTS (
           SELECT FROM outbox.delivery AS o LEFT JOIN outbox.topic AS t USING (topic)
            WHERE o.topic = k.topic AND o.key = k.key AND o.seq < k.seq AND (o.place <> 'x' OR t.block_on_dead));

-- One claim leases as many consecutive messages of a key as fit. Other keys, and messages without one, are not blocked.
SELECT pg_temp.add('a1 a2 a3 b1 -1 b2 -2');
SELECT pg_temp.take(2);
SELECT pg_temp.take(2);
SELECT pg_temp.take();
TABLE messages;
-- The next claim may have the next ones once the older ones are over.
SELECT pg_temp.done('a1');
SELECT pg_temp.take();
SELECT pg_temp.done('a2');
SELECT pg_temp.take();
SELECT pg_temp.done('b1 a3');
SELECT pg_temp.take();
SELECT pg_temp.done('b2 -1 -2');
TABLE messages;

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- The order of the answers does not matter.
SELECT pg_temp.add('a1 a2 a3 a4 a5 a6');
SELECT pg_temp.take(3);
SELECT pg_temp.take();
TABLE messages;
SELECT pg_temp.done('a3');
SELECT pg_temp.take();
SELECT pg_temp.done('a1');
SELECT pg_temp.take();
TABLE messages;
SELECT pg_temp.done('a2');
SELECT pg_temp.take(2);
SELECT pg_temp.done('a5 a4 a4');
SELECT pg_temp.take();
SELECT pg_temp.done('a6');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- The same key in another topic is another key; claims on any topic keep the order too.
SELECT pg_temp.add('a1 a2'), pg_temp.add('a1', topic => 'parcels');
SELECT pg_temp.take(1, NULL), pg_temp.take(topic => NULL), pg_temp.take(topic => NULL);
SELECT outbox.release(token) FROM lease WHERE message = 'a1';
SELECT pg_temp.take(topic => NULL);
SELECT count(outbox.complete(token)) FROM lease;
TABLE messages;

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- Fails: what is younger goes back with it, its token stale and its attempt uncounted.
SELECT pg_temp.add('a1 a2 a3 a4 b1');
SELECT pg_temp.take();
SELECT pg_temp.done('a1');
SELECT outbox.fail(pg_temp.token('a2'), 'no', now() + interval '1 hour');
TABLE messages;
SELECT pg_temp.done('a3 a4 b1'), outbox.extend(pg_temp.token('a3')), outbox.release(pg_temp.token('a4')), outbox.fail(pg_temp.token('a3'));
SELECT pg_temp.take();
-- A message that waits blocks its key until it is due.
UPDATE outbox.delivery SET available_at = now() - interval '1 second' WHERE place = 'w';
SELECT pg_temp.add('-3');
SELECT pg_temp.take(2);
SELECT pg_temp.take(2);
SELECT pg_temp.done('a3');
SELECT pg_temp.take();
SELECT pg_temp.done('a2');
SELECT pg_temp.take();
SELECT pg_temp.done('a4 -3');
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- A message appended for later does too.
SELECT outbox.append('orders', 'e', '"a1"', available_at => '2100-01-01', key => 'a') IS NOT NULL AS appended, pg_temp.add('a2 a3 b1');
SELECT pg_temp.take();
UPDATE outbox.delivery SET available_at = now() - interval '1 second' WHERE place = 'w';
SELECT pg_temp.take();
SELECT pg_temp.done('a1 a2 a3 b1');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- Released: the same.
SELECT pg_temp.add('a1 a2 a3');
SELECT pg_temp.take(2);
SELECT outbox.release(pg_temp.token('a1'));
TABLE messages;
SELECT pg_temp.done('a1 a2');
SELECT pg_temp.take(1), pg_temp.take();
-- One in the middle: the older stay.
SELECT pg_temp.done('a1');
SELECT pg_temp.take();
SELECT outbox.release(pg_temp.token('a3'));
TABLE messages;
SELECT pg_temp.take();
SELECT pg_temp.done('a2');
SELECT pg_temp.take();
SELECT pg_temp.done('a3');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- Leased again after its lease ran out: the younger go back with it, running or run out, and may be leased with it. A
-- head that crashes its worker does not use up its followers.
SELECT pg_temp.add('a1 a2 a3 a4 b1');
SELECT pg_temp.take();
SELECT pg_temp.expire('a1 a2 b1');
SELECT pg_temp.take(2);
TABLE messages;
SELECT outbox.complete(token) FROM lease WHERE message IN ('a3', 'a4');
SELECT pg_temp.expire('a1 a2');
SELECT pg_temp.take();
SELECT pg_temp.done('a1 a2 a3 a4 b1');
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- While a lease runs, a younger one that has run out is not given to others, and can still be answered.
SELECT pg_temp.add('a1 a2 a3');
SELECT pg_temp.take(2);
SELECT pg_temp.expire('a2');
SELECT pg_temp.take();
TABLE messages;
SELECT pg_temp.done('a2');
SELECT pg_temp.take();
SELECT pg_temp.done('a1');
SELECT pg_temp.take();
SELECT pg_temp.done('a3');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- A dead message does not block its key: given up, out of attempts, or its last lease run out.
SELECT pg_temp.add('a1 a2 a3');
SELECT pg_temp.take(2);
SELECT pg_temp.take();
SELECT outbox.abandon(pg_temp.token('a1'));
TABLE messages;
SELECT pg_temp.take();
SELECT outbox.abandon(pg_temp.token('a2'));
SELECT pg_temp.take();
SET outbox.max_attempts = 1;
SELECT pg_temp.add('a4 a5 a6');
SELECT outbox.fail(pg_temp.token('a3'), 'no');
SELECT pg_temp.take(1), pg_temp.take();
SELECT pg_temp.expire('a4');
TABLE messages;
SELECT pg_temp.take(1);
TABLE messages;
SELECT pg_temp.take();
SELECT pg_temp.expire('a5');
SELECT outbox.purge();
SELECT pg_temp.take();
RESET outbox.max_attempts;
SELECT pg_temp.done('a6');
TABLE messages;

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- A revived message blocks its key again; younger leases that are running stay.
SELECT pg_temp.add('a1 a2 a3 a4 a5');
SELECT pg_temp.take(2);
SELECT outbox.abandon(pg_temp.token('a1'));
SELECT pg_temp.done('a2');
SELECT pg_temp.take(1);
SELECT outbox.retry_dead(id) FROM outbox.message WHERE state = 'dead';
SELECT pg_temp.take(2);
SELECT pg_temp.take();
TABLE messages;
SELECT pg_temp.done('a3');
SELECT pg_temp.take();
SELECT pg_temp.done('a1');
SELECT pg_temp.take();
-- When it goes back, they do too.
SELECT outbox.abandon(pg_temp.token('a4'));
SELECT pg_temp.add('a6');
SELECT outbox.redrive('orders');
SELECT pg_temp.take();
TABLE messages;
SELECT outbox.release(pg_temp.token('a4'));
TABLE messages;
SELECT pg_temp.take(2);
SELECT pg_temp.done('a4 a5');
SELECT pg_temp.take();
SELECT pg_temp.done('a6');
TABLE messages;

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- block_on_dead: a dead message blocks its key, and its death sends the younger leases back.
SELECT outbox.set_topic('orders', '{"block_on_dead": true}');
SELECT pg_temp.add('a1 a2 a3 b1');
SELECT pg_temp.take();
SELECT outbox.abandon(pg_temp.token('a1'));
TABLE messages;
SELECT pg_temp.done('a2 a3 b1');
SELECT pg_temp.add('a4 c1');
SELECT pg_temp.take();
SELECT outbox.retry_dead(id) FROM outbox.message WHERE state = 'dead';
SELECT pg_temp.take(2), pg_temp.take();
SET outbox.max_attempts = 1;
SELECT outbox.fail(pg_temp.token('a1'));
TABLE messages;
SELECT pg_temp.take();
-- A death that a claim, purge or retry_dead records.
SELECT outbox.redrive('orders');
SELECT pg_temp.take(2);
SELECT pg_temp.expire('a1');
SELECT pg_temp.take();
TABLE messages;
SELECT outbox.redrive('orders');
SELECT pg_temp.take(3);
SELECT pg_temp.expire('a1');
SELECT outbox.purge();
TABLE messages;
SELECT outbox.redrive('orders');
SELECT pg_temp.take(2);
SELECT pg_temp.expire('a1');
SELECT outbox.redrive('orders');
TABLE messages;
SELECT pg_temp.take(2);
SELECT outbox.abandon(pg_temp.token('a1'));
-- Its purge ends it,
UPDATE outbox.delivery SET ended_at = now() - interval '1 year';
UPDATE outbox.envelope SET occurred_at = now() - interval '1 year';
SELECT outbox.purge();
TABLE messages;
SELECT pg_temp.take(2);
-- and so does set_topic.
SELECT outbox.abandon(pg_temp.token('a2'));
SELECT pg_temp.take();
TABLE messages;
SELECT outbox.set_topic('orders', '{"block_on_dead": false}');
TABLE messages;
SELECT pg_temp.take();
SELECT outbox.set_topic('orders', '{"block_on_dead": true}');
SELECT pg_temp.done('a3');
SELECT pg_temp.take();
TABLE messages;
SELECT outbox.set_topic('orders', '{"block_on_dead": null}');
SELECT pg_temp.take();
RESET outbox.max_attempts;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;

-- In one transaction: claims, answers and savepoints, and everything as before after a rollback.
SELECT pg_temp.add('a1 a2 a3 a4');
BEGIN;
SELECT pg_temp.take(1), pg_temp.take();
TABLE messages;
SAVEPOINT s;
SELECT pg_temp.done('a1');
SELECT pg_temp.take(1);
ROLLBACK TO s;
SELECT pg_temp.take();
SELECT outbox.release(pg_temp.token('a1'));
SELECT pg_temp.take(2);
SELECT pg_temp.done('a1 a2');
SELECT pg_temp.take(1), pg_temp.take();
ROLLBACK;
TABLE messages;
SELECT pg_temp.take(3);
SELECT pg_temp.take();
BEGIN;
SELECT pg_temp.done('a1 a2 a3');
ROLLBACK;
SELECT pg_temp.take();
TABLE messages;
TABLE stuck;
SELECT pg_temp.done('a1 a2 a3');
SELECT pg_temp.take();
SELECT pg_temp.done('a4');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- A paused topic: answers go on.
SELECT pg_temp.add('a1 a2 a3');
SELECT pg_temp.take(1), pg_temp.take();
SELECT outbox.pause('orders');
SELECT pg_temp.done('a1');
SELECT pg_temp.take(), pg_temp.take(topic => NULL);
SELECT outbox.resume('orders');
SELECT pg_temp.take();
SELECT pg_temp.done('a2 a3');

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- Many: what one claim does not park, the next ones do.
SELECT count(outbox.append('orders', 'e', to_jsonb('a' || n), key => 'a')) FROM generate_series(1, 2500) AS n;
SELECT pg_temp.add('b1 -1 b2 -2 b3');
SELECT pg_temp.take(1), pg_temp.take(1), pg_temp.take(1), pg_temp.take(), pg_temp.take();
SELECT place, count(*) FROM outbox.delivery GROUP BY place ORDER BY place;
-- All of them are ready, in both views.
SELECT ready, leased, waiting, dead FROM outbox.stats WHERE topic = 'orders';
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
SELECT count(outbox.release(token)) FROM lease;
CREATE TEMP TABLE delivery AS SELECT 0 AS number, '' AS message LIMIT 0;
DO $$
DECLARE tokens uuid[];
BEGIN
    LOOP
        WITH claimed AS (SELECT * FROM outbox.claim('worker', 'orders', 100)),
             delivered AS (INSERT INTO delivery SELECT (SELECT count(*) FROM delivery), payload #>> '{}' FROM claimed)
        SELECT array_agg(token) INTO tokens FROM claimed;
        EXIT WHEN tokens IS NULL;
        PERFORM outbox.complete_batch(tokens);
    END LOOP;
END $$;
SELECT count(*), count(DISTINCT message) FROM delivery;
SELECT state, count(*) FROM outbox.message GROUP BY state;

TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.topic, lease;
-- A bounded number of them is due at a time, and still each key is in order.
SELECT count(outbox.append('orders', 'e', to_jsonb(n), key => 'k' || n % 7, available_at => clock_timestamp() + interval '10 milliseconds' * (1000 - n) / 1000))
  FROM generate_series(1, 1000) AS n;
SELECT pg_sleep(0.02);
TRUNCATE delivery;
DO $$
DECLARE tokens uuid[];
BEGIN
    LOOP
        WITH claimed AS (SELECT *, row_number() OVER () AS place FROM outbox.claim('worker', 'orders', 30)),
             delivered AS (INSERT INTO delivery SELECT (SELECT count(*) FROM delivery) + place, payload #>> '{}' FROM claimed)
        SELECT array_agg(token) INTO tokens FROM claimed;
        EXIT WHEN tokens IS NULL;
        PERFORM outbox.complete_batch(tokens);
    END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE message::int < before) AS overtaken
  FROM (SELECT message, max(message::int) OVER (PARTITION BY message::int % 7 ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM delivery) AS _;

-- Different keys may share a hash (which is stored, and so stays as it is); they are different keys still.
SELECT pg_temp.add('a1 -1'), pg_temp.add('b9', topic => 'parcels');
SELECT topic, key, key_hash FROM outbox.delivery ORDER BY topic, key;
SELECT pg_temp.add('z1 a2');
UPDATE outbox.delivery SET key_hash = (SELECT key_hash FROM outbox.delivery WHERE key = 'a' LIMIT 1) WHERE key = 'z';
SELECT pg_temp.take(1), pg_temp.take(), pg_temp.take(topic => NULL);
TABLE messages;
SELECT pg_temp.done('a1 z1');
SELECT pg_temp.take();
SELECT pg_temp.done('a2 -1 b9');

-- Every index has every row, and nothing is parked for nothing.
SELECT state, count(*) FROM outbox.message GROUP BY state;
SELECT count(*) FROM outbox.delivery;
TABLE stuck;

-- A head is found behind any number of younger ones of its key that have been due for longer, with and without waiting.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('orders', 'e', to_jsonb(n), key => 'k' || n % 7, available_at => '2100-01-01'))
  FROM generate_series(1, 2000) AS n;
WITH placed AS (SELECT seq, row_number() OVER (ORDER BY seq) AS n FROM outbox.delivery)
UPDATE outbox.delivery SET available_at = now() + (3000 - n) * interval '0.2 ms'
  FROM placed WHERE placed.seq = delivery.seq;
SELECT pg_sleep(0.7);
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', 'orders', 30, wait_seconds => 1)));
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', 'orders', 30)));
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 500, wait_seconds => 1)));
SELECT count(*) FROM outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 500)));
-- In order.
SELECT count(*), min(payload::int), max(payload::int) FROM outbox.message WHERE state = 'delivered';
