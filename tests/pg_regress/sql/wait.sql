-- wait: returns as soon as a claim would find something; leases nothing itself.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SET statement_timeout = '20s';

-- Something is there, in the topic or in any: at once.
SELECT count(outbox.append('wait', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
CALL outbox.wait('wait');
CALL outbox.wait(topic => 'wait', wait_seconds => 60);
CALL outbox.wait();
CALL outbox.wait(NULL, 60);
SELECT payload, attempts, state FROM outbox.message ORDER BY payload;

-- Nothing that a claim would find: for as long as asked.
CREATE FUNCTION pg_temp.waits(topic text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  before timestamptz := clock_timestamp();
BEGIN
  CALL outbox.wait(topic, 1);
  RETURN clock_timestamp() - before >= interval '1 s';
END $$;
SELECT pg_temp.waits('wait for another');
INSERT INTO outbox.topic (topic, paused) VALUES ('wait', true);
SELECT pg_temp.waits('wait') AS paused, pg_temp.waits(NULL) AS paused_or_nothing;
DELETE FROM outbox.topic;
SELECT pg_temp.waits('wait') AS resumed;
SELECT count(*) FROM outbox.claim('worker');
SELECT pg_temp.waits(NULL) AS leased;
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker');
UPDATE outbox.delivery SET attempts = 50, leased_until = clock_timestamp();
SELECT pg_temp.waits(NULL) AS dead;
SELECT state, count(*), (SELECT count(*) FROM outbox.delivery WHERE place = 'x') AS recorded FROM outbox.message GROUP BY state;
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('wait', 'e', '1', available_at => 'tomorrow'));
SELECT pg_temp.waits('wait') AS delayed;

-- Time brings it: a due time, the end of a lease.
UPDATE outbox.delivery SET available_at = clock_timestamp() + interval '300 ms';
CALL outbox.wait('wait');
SELECT payload FROM outbox.claim('worker', lease_seconds => 1);
CALL outbox.wait();
SELECT attempts FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery;

-- In a transaction block, and in a block that commits: what the same transaction has appended, or another has.
BEGIN;
SELECT count(outbox.append('wait', 'e', '1'));
CALL outbox.wait('wait');
SAVEPOINT s;
CALL outbox.wait('wait', 1000);
ROLLBACK TO s;
CALL outbox.wait('wait');
COMMIT;
DO $$
DECLARE
  lease record;
BEGIN
  FOR n IN 1..3 LOOP
    CALL outbox.wait('wait');
    SELECT token, payload INTO STRICT lease FROM outbox.claim('worker', 'wait');
    COMMIT;
    RAISE INFO '% %', lease.payload, outbox.complete(lease.token);
    PERFORM outbox.append('wait', 'e', to_jsonb(n + 1));
    COMMIT;
  END LOOP;
END $$;
SELECT payload, state FROM outbox.message ORDER BY payload;
-- Under every isolation level.
SET default_transaction_isolation = 'serializable';
CALL outbox.wait('wait');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
CALL outbox.wait('wait');
COMMIT;
RESET default_transaction_isolation;

-- A cancel ends it. A procedure is called, not selected from.
SET statement_timeout = '100ms';
CALL outbox.wait('wait nothing');
CALL outbox.wait('wait nothing', 0);
RESET statement_timeout;
SELECT outbox.wait('wait', 0);
