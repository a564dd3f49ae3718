-- append: what a message is made of, idempotence by id, delay by available_at, the caller's transaction.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Without an id the server makes a UUID of version 7, whose first 48 bits are the time in milliseconds.
SELECT clock_timestamp() AS before \gset
SELECT outbox.append('append', 'evt.test.v1', '{"n": 1}') AS id \gset
SELECT substr(:'id', 15, 1) AS version,
       substr(:'id', 20, 1) IN ('8', '9', 'a', 'b') AS rfc_variant,
       to_timestamp(('x' || translate(left(:'id', 13), '-', ''))::bit(48)::bigint / 1000.0)
           BETWEEN :'before'::timestamptz - interval '1 ms' AND clock_timestamp() AS now;
-- What was not given is NULL, and it is ready at once.
SELECT id = :'id' AS id, topic, event_type, payload, key, headers, state, attempts,
       created_at BETWEEN :'before' AND clock_timestamp() AS created_now,
       available_at = created_at AS available_at_once
  FROM outbox.message;
SELECT count(DISTINCT outbox.append('many', 'e', '{}')) FROM generate_series(1, 1000);
TRUNCATE outbox.envelope, outbox.delivery;

-- Every argument, in named notation; the id comes back.
SELECT outbox.append(topic => 'append', type => 'evt.test.v1', payload => '{"n": 2}',
       id => '00000000-0000-4000-8000-000000000002', available_at => '2000-01-01 00:00+00',
       key => 'order 7', headers => '{"traceparent": "00-0af7-b7ad-01", "nested": {"list": [1, null]}}');
SELECT id, topic, event_type, payload, key, headers, state FROM outbox.message;

-- The id is stored already: nothing is written, whatever the other arguments say.
SELECT outbox.append('another', 'evt.other.v1', '{"n": 3}', '00000000-0000-4000-8000-000000000002',
       'tomorrow', 'another key', '{}');
SELECT id, topic, event_type, payload, key, state FROM outbox.message;
-- So in every state: leased, waiting, dead, delivered.
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.append('append', 'e', '{}', '00000000-0000-4000-8000-000000000002');
SELECT outbox.fail(:'token', retry_at => 'tomorrow');
SELECT outbox.append('append', 'e', '{}', '00000000-0000-4000-8000-000000000002');
UPDATE outbox.delivery SET available_at = clock_timestamp();
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.abandon(:'token');
SELECT outbox.append('append', 'e', '{}', '00000000-0000-4000-8000-000000000002');
SELECT outbox.retry_dead('00000000-0000-4000-8000-000000000002');
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.complete(:'token');
SELECT outbox.append('append', 'e', '{}', '00000000-0000-4000-8000-000000000002');
SELECT payload, state FROM outbox.message;
SELECT count(*) FROM outbox.claim('worker');
-- Until purge removes the message: then the id is a new one.
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
SELECT outbox.purge();
SELECT outbox.append('append', 'e', '{"n": 4}', '00000000-0000-4000-8000-000000000002');
SELECT payload, state FROM outbox.message;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Twice in one statement, twice in one transaction, and again after the savepoint that had it was rolled back.
SELECT outbox.append('append', 'e', to_jsonb(n), '00000000-0000-4000-8000-000000000005') FROM generate_series(1, 2) AS n;
BEGIN;
SELECT outbox.append('append', 'e', '3', '00000000-0000-4000-8000-000000000006');
SELECT outbox.append('append', 'e', '4', '00000000-0000-4000-8000-000000000006');
SAVEPOINT before;
SELECT outbox.append('append', 'e', '5', '00000000-0000-4000-8000-000000000007');
ROLLBACK TO before;
SELECT outbox.append('append', 'e', '6', '00000000-0000-4000-8000-000000000007');
COMMIT;
SELECT right(id::text, 1) AS id, payload FROM outbox.message ORDER BY id;
TRUNCATE outbox.envelope, outbox.delivery;

-- It exists exactly when the transaction commits.
BEGIN;
SELECT outbox.append('append', 'e', '1') IS NOT NULL AS appended;
SELECT count(*) FROM outbox.message;
ROLLBACK;
SELECT count(*) FROM outbox.message;
SELECT count(*) FROM outbox.claim('worker');

-- created_at is the time of the call, not of the transaction.
BEGIN;
SELECT pg_sleep(0.01);
SELECT outbox.append('append', 'e', '1') IS NOT NULL AS appended;
SELECT created_at > now() + interval '9 ms' AS later FROM outbox.message;
ROLLBACK;

-- available_at: past and NULL are ready, the future waits, whatever the session's TimeZone; its place in line is kept.
SELECT count(outbox.append('append', 'e', to_jsonb(n), available_at => at))
  FROM (VALUES (1, clock_timestamp() + interval '1 hour'), (2, NULL), (3, clock_timestamp() - interval '1 year'),
               (4, '4713-11-24 BC'), (5, '294276-12-31'), (6, clock_timestamp() + interval '1 min')) AS m (n, at);
SET TimeZone = 'Asia/Tokyo';
SELECT payload, state, available_at > created_at AS delayed FROM outbox.message ORDER BY payload;
SELECT payload FROM outbox.claim('worker');
RESET TimeZone;
UPDATE outbox.delivery SET available_at = clock_timestamp() WHERE available_at < now() + interval '1 day';
SELECT count(outbox.append('append', 'e', '7'));
SELECT payload FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery;

-- The order of calls is arrival order, within a statement too.
SELECT count(outbox.append('append', 'e', to_jsonb(n))) FROM (SELECT n FROM generate_series(1, 50) AS n ORDER BY n DESC) AS s;
SELECT string_agg(payload::text, ' ' ORDER BY place) = (SELECT string_agg(n::text, ' ' ORDER BY n DESC) FROM generate_series(1, 50) AS n)
       AS in_order
  FROM outbox.claim('worker') WITH ORDINALITY AS c (id, token, topic, type, payload, occurred_at, key, headers, attempts, leased_until, place);
