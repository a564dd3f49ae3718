-- extension: created, dropped and created again within a session; a library that does not fit is refused.
-- Only a superuser can create it, and only where no schema outbox is.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT count(outbox.append('extension', 'e', '1'));
SELECT count(outbox.complete(token)) FROM outbox.claim('worker');
SELECT outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001'), outbox.purge();
DROP EXTENSION outbox;
SELECT to_regnamespace('outbox');
CREATE SCHEMA outbox;
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
\set SHOW_CONTEXT errors
DROP SCHEMA outbox;
CREATE ROLE regress_outbox_creator;
GRANT CREATE ON DATABASE :DBNAME TO regress_outbox_creator;
SET ROLE regress_outbox_creator;
CREATE EXTENSION outbox;
RESET ROLE;
DROP OWNED BY regress_outbox_creator;
DROP ROLE regress_outbox_creator;

-- Created again, with a search_path that shadows the types it uses; the session works with the new tables.
CREATE SCHEMA hostile;
CREATE DOMAIN hostile.uuid AS uuid CHECK (false);
CREATE DOMAIN hostile.int4 AS int4 CHECK (false);
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
SET search_path = hostile, pg_catalog;
CREATE EXTENSION outbox;
RESET search_path;
SELECT count(outbox.append('extension', 'e', to_jsonb(n))) FROM generate_series(1, 2) AS n;
SELECT payload, outbox.complete(token) FROM outbox.claim('worker', batch_size => 1);
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001'), outbox.purge();
-- Dropped and created within a transaction that rolls back: the old one is there, with its rows.
BEGIN;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT count(outbox.append('extension', 'e', '3'));
SELECT payload FROM outbox.claim('worker');
ROLLBACK;
SELECT payload FROM outbox.claim('worker');

-- The library is of another version than the extension that is installed here: every function says so, and what to do.
CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  hint text;
BEGIN
  EXECUTE statement;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
  RETURN concat_ws(' ', SQLSTATE, hint);
END $$;
BEGIN;
UPDATE pg_extension SET extversion = '0.0.0' WHERE extname = 'outbox';
ALTER FUNCTION outbox.append COST 1; -- as an update does, changes a function
SELECT statement, pg_temp.try('SELECT outbox.' || statement) FROM unnest(ARRAY[
  'append(''t'', ''e'', ''1'')', 'append_batch(''t'', ''[{"type": "e", "payload": 1}]'')',
  'claim(''w'')', 'complete(''00000000-0001-8000-8000-000000000001'')', 'complete_batch(''{00000000-0001-8000-8000-000000000001}'')',
  'fail(''00000000-0001-8000-8000-000000000001'')', 'abandon(''00000000-0001-8000-8000-000000000001'')',
  'extend(''00000000-0001-8000-8000-000000000001'')',
  'release(''00000000-0001-8000-8000-000000000001'')', 'consume_once(''c'', ''00000000-0000-4000-8000-000000000002'')',
  'retry_dead(''00000000-0000-4000-8000-000000000002'')', 'purge()',
  'redrive(''t'')', 'discard(''t'')', 'pause(''t'')', 'resume(''t'')', 'set_topic(''t'', ''{}'')',
  'cloudevent(''00000000-0000-4000-8000-000000000002'')', 'read_stats()', 'read_status()', 'grant_access(''pg_monitor'', ''monitor'')', 'revoke_access(''pg_monitor'', ''monitor'')',
  'append_batch(''t'', ''[]'')', 'complete(''00000000-0000-4000-8000-000000000003'')', 'complete_batch(''{}'')',
  'fail(''00000000-0000-4000-8000-000000000003'')', 'release(''00000000-0000-4000-8000-000000000003'')']) AS statement;
ROLLBACK;
ALTER FUNCTION outbox.append COST 1;
SELECT count(outbox.append('extension', 'e', '4'));

-- Dropping the schema that was current when it was created does not drop it, and the messages with it.
SET client_min_messages = warning;
DROP SCHEMA hostile CASCADE;
RESET client_min_messages;
SELECT count(*) FROM pg_extension WHERE extname = 'outbox';
