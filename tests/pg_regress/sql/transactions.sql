-- transactions: savepoints, triggers, PL/pgSQL, exception blocks, isolation levels, cursors, and every place a query can call from.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE VIEW pg_temp.m AS SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload;

-- A claim rolled back gives everything back at once, uncounted; its token is worth nothing.
SELECT count(outbox.append('transactions', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
BEGIN;
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
SELECT * FROM pg_temp.m;
ROLLBACK;
SELECT * FROM pg_temp.m;
SELECT outbox.complete(:'token'), outbox.fail(:'token'), outbox.abandon(:'token'), outbox.extend(:'token'), outbox.release(:'token');
SELECT payload, attempts, outbox.release(token) FROM outbox.claim('worker', batch_size => 1);
-- So with a savepoint; what was claimed before it stays leased, what is claimed after it is new.
BEGIN;
SELECT token AS before FROM outbox.claim('worker', batch_size => 1) \gset
SAVEPOINT s;
SELECT token AS within FROM outbox.claim('worker', batch_size => 1) \gset
SELECT outbox.complete(:'before');
ROLLBACK TO s;
SELECT token AS after, payload, attempts FROM outbox.claim('worker', batch_size => 1) \gset
SELECT :'payload' AS payload, :attempts AS attempts, :'within' <> :'after' AS another_token, outbox.complete(:'within') AS within,
       outbox.complete(:'before') AS before, outbox.complete(:'after') AS after;
COMMIT;
SELECT * FROM pg_temp.m;
-- Every answer in a savepoint that is rolled back was not given.
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset
BEGIN;
SAVEPOINT s;
SELECT outbox.complete(:'token');
ROLLBACK TO s;
SELECT outbox.fail(:'token', 'error');
ROLLBACK TO s;
SELECT outbox.abandon(:'token', 'error');
ROLLBACK TO s;
SELECT outbox.release(:'token');
ROLLBACK TO s;
SELECT outbox.extend(:'token', 10) < clock_timestamp() + interval '11 s' AS extended;
ROLLBACK TO s;
SELECT payload, state, attempts, leased_until > clock_timestamp() + interval '40 s' AS as_before FROM outbox.message WHERE state = 'leased';
SELECT outbox.complete(:'token');
COMMIT;
SELECT * FROM pg_temp.m;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Append, claim and answer in one transaction, as in one statement.
BEGIN;
SELECT outbox.append('transactions', 'e', '1') IS NOT NULL AS appended;
SELECT payload, outbox.fail(token, 'error', '2000-01-01') FROM outbox.claim('worker');
SELECT payload, attempts, outbox.complete(token) FROM outbox.claim('worker');
SELECT count(*) FROM outbox.claim('worker');
COMMIT;
SELECT * FROM pg_temp.m;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Two claims in one statement are disjoint, whatever the query makes of them.
SELECT count(outbox.append('transactions', 'e', to_jsonb(n))) FROM generate_series(1, 12) AS n;
SELECT count(*), count(DISTINCT payload) FROM
  (SELECT payload FROM outbox.claim('a', batch_size => 2) UNION ALL SELECT payload FROM outbox.claim('b', batch_size => 2)) AS u;
SELECT count(*) FROM outbox.claim('a', batch_size => 2) AS a JOIN outbox.claim('b', batch_size => 2) AS b USING (id);
SELECT count(*), count(DISTINCT payload) FROM generate_series(1, 2) AS n, LATERAL outbox.claim('worker ' || n, batch_size => 2);
-- LIMIT does not un-lease: all were claimed before the first row came.
UPDATE outbox.delivery SET leased_until = clock_timestamp();
SELECT payload FROM outbox.claim('worker', batch_size => 4) LIMIT 1;
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
-- Nor does a filter, and a claim that is joined is one claim.
SELECT payload FROM outbox.claim('worker', batch_size => 4) WHERE payload = '6';
SELECT n, payload FROM generate_series(1, 3) AS n, outbox.claim('worker', batch_size => 1) ORDER BY n;
SELECT EXISTS (SELECT FROM outbox.claim('worker', batch_size => 2));
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
TRUNCATE outbox.envelope, outbox.delivery;

-- From the select list, a CTE read twice, CREATE TABLE AS, INSERT … SELECT, COPY, LATERAL.
SELECT count(outbox.append('transactions', 'e', to_jsonb(n))) FROM generate_series(1, 12) AS n;
SELECT (c).payload, (c).attempts FROM (SELECT outbox.claim('worker', batch_size => 2) AS c OFFSET 0) AS s;
WITH c AS (SELECT * FROM outbox.claim('worker', batch_size => 2))
SELECT a.payload, b.payload FROM c AS a JOIN c AS b USING (token) ORDER BY 1;
CREATE TEMP TABLE lease AS SELECT * FROM outbox.claim('worker', batch_size => 2);
INSERT INTO lease SELECT * FROM outbox.claim('worker', batch_size => 2);
SELECT payload FROM lease ORDER BY payload;
COPY (SELECT payload FROM outbox.claim('worker', batch_size => 2)) TO STDOUT;
SELECT payload, completed FROM outbox.claim('worker', batch_size => 1) AS c, LATERAL outbox.complete_batch(ARRAY[c.token]);
SELECT payload, complete FROM outbox.claim('worker', batch_size => 1) AS c, LATERAL outbox.complete(c.token);
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
DELETE FROM lease WHERE outbox.complete(token);
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
DROP TABLE lease;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Cursors and prepared statements.
SELECT count(outbox.append('transactions', 'e', to_jsonb(n))) FROM generate_series(1, 12) AS n;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT payload FROM outbox.claim('worker', batch_size => 3);
FETCH c;
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
FETCH ALL c;
FETCH FIRST c;
FETCH LAST c;
ROLLBACK;
PREPARE claim (text, integer) AS SELECT payload FROM outbox.claim($1, batch_size => $2);
PREPARE append (jsonb) AS SELECT outbox.append('transactions', 'e', $1) IS NOT NULL AS appended;
SET plan_cache_mode = force_generic_plan;
EXECUTE claim ('worker', 2);
EXECUTE claim ('worker', 3);
EXECUTE append ('13');
EXECUTE claim ('worker', 50);
EXECUTE claim ('', 50);
EXECUTE claim ('worker', 50);
RESET plan_cache_mode;
DEALLOCATE ALL;
TRUNCATE outbox.envelope, outbox.delivery;

-- A trigger appends what its table's rows say: row by row, a whole statement's, and as late as at commit.
CREATE TABLE pg_temp.orders (id integer PRIMARY KEY);
CREATE FUNCTION pg_temp.each() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM outbox.append(TG_ARGV[0], 'evt.orders.placed.v1', to_jsonb(new));
  RETURN new;
END $$;
CREATE FUNCTION pg_temp.all() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM outbox.append_batch('statement', jsonb_agg(jsonb_build_object('type', 'evt.orders.placed.v1',
          'payload', to_jsonb(new_orders)) ORDER BY id)) FROM new_orders;
  RETURN NULL;
END $$;
CREATE TRIGGER each BEFORE INSERT ON pg_temp.orders FOR EACH ROW EXECUTE FUNCTION pg_temp.each('row');
CREATE TRIGGER all_of_them AFTER INSERT ON pg_temp.orders REFERENCING NEW TABLE AS new_orders
  FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.all();
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON pg_temp.orders DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION pg_temp.each('commit');
BEGIN;
INSERT INTO pg_temp.orders VALUES (1), (2);
SELECT topic, payload FROM outbox.message ORDER BY topic, payload;
COMMIT;
SELECT topic, payload FROM outbox.message ORDER BY topic, payload;
INSERT INTO pg_temp.orders VALUES (3), (1);
SELECT count(*) FROM outbox.message;
DROP TABLE pg_temp.orders;
TRUNCATE outbox.envelope, outbox.delivery;

-- A worker in PL/pgSQL: each message's effect in a block of its own, its failure recorded outside.
CREATE TEMP TABLE effect (n integer);
CREATE FUNCTION pg_temp.work() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  message outbox.claimed;
  done integer := 0;
BEGIN
  FOR message IN SELECT * FROM outbox.claim('worker', batch_size => 3) LOOP
    BEGIN
      INSERT INTO effect VALUES (message.payload::integer);
      PERFORM 1 / (message.payload::integer - 2);
      done := done + outbox.complete(message.token)::integer;
    EXCEPTION WHEN division_by_zero THEN
      PERFORM outbox.fail(message.token, SQLERRM);
    END;
  END LOOP;
  RETURN done;
END $$;
SELECT count(outbox.append('transactions', 'e', to_jsonb(n))) FROM generate_series(1, 4) AS n;
SELECT pg_temp.work(), pg_temp.work(), pg_temp.work();
SELECT * FROM effect ORDER BY n;
SELECT * FROM pg_temp.m;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- Errors caught in exception blocks leave the transaction and the leases usable.
DO $$
DECLARE
  lease_token uuid;
  errors integer := 0;
  statement text;
BEGIN
  PERFORM outbox.append('transactions', 'e', '1');
  SELECT token INTO lease_token FROM outbox.claim('worker');
  FOREACH statement IN ARRAY ARRAY['append(NULL, NULL, NULL)', 'append_batch(''t'', ''[{"type": "e", "payload": 1}, 2]'')',
    'claim('''')', 'complete(NULL)', 'complete_batch(''{NULL}'')', 'fail($1, NULL, ''infinity'')', 'abandon(NULL)', 'extend($1, 0)',
    'release(NULL)', 'consume_once('''', $1)', 'retry_dead(NULL)', 'purge(0)'] LOOP
    BEGIN
      EXECUTE 'SELECT outbox.' || statement USING lease_token;
    EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed THEN
      errors := errors + 1;
    END;
  END LOOP;
  PERFORM outbox.append('transactions', 'e', to_jsonb(errors));
  IF NOT outbox.complete(lease_token) THEN RAISE 'the lease is gone'; END IF;
END $$;
SELECT * FROM pg_temp.m;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;

-- REPEATABLE READ and SERIALIZABLE: what is appended after the snapshot is a duplicate, is claimed and is answered all the same.
SELECT count(outbox.append('transactions', 'e', '1'));
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox.message;
SELECT outbox.append('transactions', 'e', '2', '00000000-0000-4000-8000-000000000002');
SELECT outbox.append('transactions', 'e', '3', '00000000-0000-4000-8000-000000000002');
SELECT payload, outbox.complete(token) FROM outbox.claim('worker', batch_size => 1);
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.fail(:'token', 'error', '2000-01-01');
SELECT payload, attempts FROM outbox.claim('worker');
SELECT outbox.complete(:'token');
COMMIT;
SELECT * FROM pg_temp.m;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM outbox.message;
SELECT outbox.append('transactions', 'e', '4') IS NOT NULL AS appended;
SELECT token FROM outbox.claim('worker') \gset
SELECT outbox.extend(:'token') IS NOT NULL AS extended, outbox.release(:'token'), outbox.complete(:'token');
SELECT payload, outbox.abandon(token, 'error') FROM outbox.claim('worker');
COMMIT;
SELECT * FROM pg_temp.m;
