-- privileges: nothing for PUBLIC; of what a role has rights to it needs EXECUTE besides; no search_path captures a call.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE ROLE regress_outbox_role;
CREATE ROLE regress_outbox_other;

CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
-- A call of every function; %L is the token of a lease.
CREATE TEMP TABLE call AS SELECT * FROM (VALUES
  ('append', $$SELECT outbox.append('privileges', 'e', '1', '00000000-0000-4000-8000-000000000001', 'tomorrow', 'k', '{}')$$),
  ('append_batch', $$SELECT outbox.append_batch('privileges', '[{"type": "e", "payload": 1},
                                               {"type": "e", "payload": 1, "id": "00000000-0000-4000-8000-000000000002"}]')$$),
  ('claim', $$SELECT * FROM outbox.claim('worker')$$),
  ('wait', $$CALL outbox.wait('privileges', 0)$$),
  ('complete', $$SELECT outbox.complete(%L)$$),
  ('complete_batch', $$SELECT outbox.complete_batch(ARRAY[%L]::uuid[])$$),
  ('fail', $$SELECT outbox.fail(%L, 'error')$$),
  ('abandon', $$SELECT outbox.abandon(%L)$$),
  ('extend', $$SELECT outbox.extend(%L)$$),
  ('release', $$SELECT outbox.release(%L)$$),
  ('consume_once', $$SELECT outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001')$$),
  ('retry_dead', $$SELECT outbox.retry_dead(id) FROM dead$$),
  ('redrive', $$SELECT outbox.redrive('privileges')$$),
  ('discard', $$SELECT outbox.discard('none')$$),
  ('pause', $$SELECT outbox.pause('other')$$),
  ('resume', $$SELECT outbox.resume('other')$$),
  ('set_topic', $$SELECT outbox.set_topic('other', '{"batch_size": 1}')$$),
  ('cloudevent', $$SELECT outbox.cloudevent(gen_random_uuid())$$),
  ('grant_access', $$SELECT outbox.grant_access('regress_outbox_other', 'monitor')$$),
  ('revoke_access', $$SELECT outbox.revoke_access('regress_outbox_other', 'monitor')$$),
  ('read_stats', $$SELECT * FROM outbox.read_stats()$$),
  ('read_status', $$SELECT * FROM outbox.read_status()$$),
  ('purge', $$SELECT outbox.purge()$$)) AS v (function, statement);
GRANT SELECT ON call TO regress_outbox_role;
-- No function is forgotten here.
SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND obj_description(oid, 'pg_proc') NOT LIKE '%Private.' EXCEPT SELECT function FROM call;

-- A role without grants, and one with USAGE on the schema only: no function, no relation, no sequence, no type.
CREATE FUNCTION pg_temp.attempts() RETURNS TABLE (what text, statement text) LANGUAGE sql AS $$
  SELECT 'function', format(c.statement, gen_random_uuid()) FROM call AS c WHERE c.function <> 'retry_dead'
  UNION ALL SELECT 'function', 'SELECT outbox.retry_dead(gen_random_uuid())'
  UNION ALL SELECT 'table', format(s, relname) FROM pg_class, unnest(ARRAY['SELECT FROM outbox.%I', 'INSERT INTO outbox.%I DEFAULT VALUES',
            'DELETE FROM outbox.%I', 'SELECT FROM outbox.%I FOR UPDATE', 'TRUNCATE outbox.%I', 'LOCK outbox.%I IN ACCESS SHARE MODE',
            'DROP TABLE outbox.%I']) AS s WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'
  UNION ALL SELECT 'view', format('SELECT FROM outbox.%I', relname) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'
  UNION ALL SELECT 'sequence', format(s, relname) FROM pg_class, unnest(ARRAY['SELECT nextval(''outbox.%I'')', 'SELECT setval(''outbox.%I'', 1)',
            'SELECT currval(''outbox.%I'')', 'SELECT FROM outbox.%I']) AS s WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'S'
  UNION ALL SELECT 'schema', 'CREATE TABLE outbox.mine ()'
  UNION ALL SELECT 'type', 'CREATE FUNCTION pg_temp.f(outbox.claimed) RETURNS void LANGUAGE sql AS '''''
$$;
GRANT CREATE, TEMP ON DATABASE :DBNAME TO regress_outbox_role;
CREATE TEMP TABLE attempt AS SELECT * FROM pg_temp.attempts();
GRANT SELECT ON attempt TO regress_outbox_role;
SET ROLE regress_outbox_role;
SELECT what, count(*), array_agg(DISTINCT pg_temp.try(statement)) FROM attempt GROUP BY what ORDER BY what;
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_role;
SET ROLE regress_outbox_role;
SELECT what, count(*), array_agg(DISTINCT pg_temp.try(statement)) FROM attempt GROUP BY what ORDER BY what;
SELECT outbox.append('privileges', 'e', '1');
SELECT * FROM outbox.claim('worker');
SELECT * FROM outbox.message;
RESET ROLE;

-- Rights, and EXECUTE on one function: that one works, on real rows, and the others are refused.
INSERT INTO outbox.access VALUES ('regress_outbox_role', 'producer', '*'), ('regress_outbox_role', 'worker', '*');
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA outbox FROM regress_outbox_role;
CREATE FUNCTION pg_temp.only(function text, OUT itself text, OUT others text[]) LANGUAGE plpgsql AS $$
DECLARE
  lease_token uuid;
BEGIN
  PERFORM outbox.append('privileges', 'e', '1') FROM generate_series(1, 4);
  PERFORM outbox.complete(token) FROM outbox.claim('worker', batch_size => 1);
  PERFORM outbox.abandon(token) FROM outbox.claim('worker', batch_size => 1);
  UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
  UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
  SELECT token INTO lease_token FROM outbox.claim('worker', batch_size => 1);
  CREATE TEMP TABLE dead ON COMMIT DROP AS SELECT id FROM outbox.message WHERE state = 'dead';
  GRANT SELECT ON dead TO regress_outbox_role;
  EXECUTE format('GRANT EXECUTE ON ROUTINE outbox.%I TO regress_outbox_role', function);
  SET LOCAL ROLE regress_outbox_role;
  SELECT pg_temp.try(format(c.statement, lease_token)) INTO itself FROM call AS c WHERE c.function = $1;
  SELECT array_agg(DISTINCT pg_temp.try(format(c.statement, lease_token))) INTO others FROM call AS c WHERE c.function <> $1;
  RESET ROLE;
  EXECUTE format('REVOKE EXECUTE ON ROUTINE outbox.%I FROM regress_outbox_role', function);
  DROP TABLE dead;
  TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed;
END $$;
SELECT function, itself, others FROM call, pg_temp.only(function) WHERE function NOT IN ('grant_access', 'revoke_access', 'purge');
SELECT outbox.purge(); -- what was revoked by hand is forgotten
SELECT count(*) FROM outbox.access;
SELECT function, itself, others FROM call, pg_temp.only(function) WHERE function IN ('append', 'claim', 'consume_once', 'grant_access', 'revoke_access', 'purge');

-- What runs with the owner's rights, and with which search_path.
SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosecdef ORDER BY proname;
-- Nobody but the owner has been granted anything, on whatever object.
SELECT kind, name, grantee, privilege_type FROM (
  SELECT 'schema' AS kind, nspname AS name, nspowner AS owner, coalesce(nspacl, acldefault('n', nspowner)) AS acl
    FROM pg_namespace WHERE nspname = 'outbox'
  UNION ALL SELECT 'function', proname, proowner, coalesce(proacl, acldefault('f', proowner)) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
  UNION ALL SELECT 'relation', relname, relowner, coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
              FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
  UNION ALL SELECT 'column', attname, NULL, attacl FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
             WHERE relnamespace = 'outbox'::regnamespace AND attacl IS NOT NULL
  UNION ALL SELECT 'type', typname, typowner, coalesce(typacl, acldefault('T', typowner))
              FROM pg_type JOIN pg_class ON pg_class.oid = typrelid AND relkind = 'c' WHERE typnamespace = 'outbox'::regnamespace) AS o, LATERAL aclexplode(acl) AS a
 WHERE grantee IS DISTINCT FROM owner AND grantee <> 'regress_outbox_role'::regrole;

-- A hostile search_path: operators, functions, tables and types that shadow what the extension uses, ahead of pg_catalog.
CREATE SCHEMA hostile AUTHORIZATION regress_outbox_role;
SELECT outbox.grant_access('regress_outbox_role', capability) FROM unnest('{producer,worker,operator}'::text[]) AS capability;
SELECT count(outbox.append('privileges', 'e', to_jsonb(n), ('00000000-0000-4000-8000-00000000000' || n)::uuid)) FROM generate_series(1, 3) AS n;
SELECT count(outbox.complete(token)) FROM outbox.claim('worker', batch_size => 1);
SELECT count(outbox.abandon(token)) FROM outbox.claim('worker', batch_size => 1);
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
UPDATE outbox.delivery SET ended_at = ended_at - interval '1 year' WHERE ended_at IS NOT NULL;
INSERT INTO outbox.processed VALUES ('consumer', '00000000-0000-4000-8000-000000000009', '2000-01-01');
INSERT INTO outbox.topic (topic, retention_days) VALUES ('privileges', 7);
SET ROLE regress_outbox_role;
DO $$
DECLARE
  type text;
  operator text;
  signature text;
BEGIN
  FOREACH type IN ARRAY ARRAY['text', 'int8', 'int4', 'int2', 'uuid', 'timestamptz', '"char"', 'name', 'jsonb', 'bool', 'anyelement'] LOOP
    EXECUTE format('CREATE FUNCTION hostile.trap(%1$s, %1$s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE ''captured''; END $f$', type);
    FOREACH operator IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>='] LOOP
      EXECUTE format('CREATE OPERATOR hostile.%2$s (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = hostile.trap)', type, operator);
    END LOOP;
  END LOOP;
  FOREACH signature IN ARRAY ARRAY['clock_timestamp() RETURNS timestamptz', 'now() RETURNS timestamptz',
    'make_interval(secs double precision) RETURNS interval', 'current_setting(text, boolean) RETURNS text',
    'min(integer) RETURNS integer', 'nextval(regclass) RETURNS bigint', 'uuid_eq(uuid, uuid) RETURNS boolean',
    'minus(timestamptz, interval) RETURNS timestamptz', 'times(numeric, integer) RETURNS numeric', 'times(numeric, bigint) RETURNS numeric'] LOOP
    EXECUTE format('CREATE FUNCTION hostile.%s LANGUAGE plpgsql AS $f$ BEGIN RAISE ''captured''; END $f$', signature);
  END LOOP;
  CREATE OPERATOR hostile.- (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = hostile.minus);
  CREATE OPERATOR hostile.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = hostile.times);
  CREATE OPERATOR hostile.* (LEFTARG = numeric, RIGHTARG = bigint, FUNCTION = hostile.times);
END $$;
CREATE TABLE hostile.envelope (seq bigint);
CREATE TABLE hostile.delivery (seq bigint);
CREATE TABLE hostile.receipt (first bigint);
CREATE TEMP TABLE envelope (seq bigint);
CREATE TEMP TABLE delivery (seq bigint);
CREATE TEMP TABLE receipt (first bigint);
CREATE TYPE hostile.claimed AS (id text);
CREATE DOMAIN hostile.text AS text CHECK (false);
CREATE DOMAIN hostile.uuid AS uuid CHECK (false);
CREATE DOMAIN hostile.int8 AS int8 CHECK (false);
CREATE DOMAIN hostile.timestamptz AS timestamptz CHECK (false);
SET search_path = pg_temp, hostile, pg_catalog, outbox;
-- The traps are set.
SELECT 'a'::text = 'a'::text;
SELECT 1::bigint = 1::bigint;
SELECT clock_timestamp();
-- A message's whole life among them.
SELECT outbox.purge();
SELECT payload, state FROM outbox.message;
SELECT outbox.append('privileges', 'e', '4', '00000000-0000-4000-8000-000000000004', key => 'k', headers => '{}');
SELECT outbox.append('privileges', 'e', '4', '00000000-0000-4000-8000-000000000004');
SELECT count(id) FROM outbox.append_batch('privileges', '[{"type": "e", "payload": 5, "available_at": "2000-01-01T00:00:00Z"}]') AS id;
SELECT payload, outbox.release(token) FROM outbox.claim('worker', 'privileges', batch_size => 1);
SELECT payload, outbox.fail(token, 'error', '2000-01-01') FROM outbox.claim('worker', batch_size => 1);
SELECT payload, outbox.extend(token) IS NOT NULL AS extended, outbox.abandon(token) FROM outbox.claim('worker', batch_size => 1);
SELECT outbox.retry_dead('00000000-0000-4000-8000-000000000003');
SELECT count(completed) FROM (SELECT pg_catalog.array_agg(token) AS tokens FROM outbox.claim('worker')) AS c,
       outbox.complete_batch(tokens) WHERE completed;
SELECT n, outbox.consume_once('consumer', '00000000-0000-4000-8000-000000000001') FROM generate_series(1, 2) AS n;
SELECT payload, state FROM outbox.message ORDER BY created_at USING OPERATOR(pg_catalog.<);
RESET search_path;
RESET ROLE;
SELECT consumer, message_id FROM outbox.processed;
-- And a superuser who calls with that search_path.
SET search_path = pg_temp, hostile, pg_catalog;
SELECT outbox.append('privileges', 'e', '6') IS NOT NULL AS appended;
SELECT payload, outbox.complete(token) FROM outbox.claim('worker');
SELECT outbox.purge();
RESET search_path;
DROP OWNED BY regress_outbox_role CASCADE;
DROP ROLE regress_outbox_role, regress_outbox_other;
