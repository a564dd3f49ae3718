-- grant_access, revoke_access, apply_access, forget_access: a right is a row, and privileges follow.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE ROLE regress_outbox_a;
CREATE ROLE regress_outbox_b;
CREATE ROLE "regress_Outbox ""quoted""";
CREATE FUNCTION pg_temp.try(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  message text;
  hint text;
BEGIN
  EXECUTE format('SET LOCAL ROLE %I', role);
  EXECUTE statement;
  RESET ROLE;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
  RETURN concat_ws(' | ', SQLSTATE, message, nullif(hint, ''));
END $$;
-- What a role holds, as one line a kind.
CREATE FUNCTION pg_temp.holds(role text) RETURNS TABLE (kind text, names text) LANGUAGE sql AS $$
  SELECT kind, string_agg(name, ' ' ORDER BY name COLLATE "C")
    FROM (SELECT 'routine' AS kind, proname::text AS name, proacl AS acl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
          UNION ALL SELECT 'relation', relname, relacl FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
          UNION ALL SELECT 'schema', nspname, nspacl FROM pg_namespace WHERE nspname = 'outbox') AS o, LATERAL aclexplode(acl)
   WHERE grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) GROUP BY kind
   UNION ALL SELECT 'right', string_agg(capability || ':' || topic, ' ' ORDER BY capability, topic) FROM outbox.access WHERE access.role = $1
  HAVING count(*) > 0 ORDER BY 1
$$;

-- Each capability: what it gives, and that taking it away leaves nothing.
SELECT outbox.grant_access(role_name => 'regress_outbox_a', capability => 'producer');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.grant_access('regress_outbox_a', 'producer'); -- again
SELECT outbox.revoke_access(role_name => 'regress_outbox_a', capability => 'producer');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.grant_access('regress_outbox_a', 'worker');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.revoke_access('regress_outbox_a', 'worker');
SELECT outbox.grant_access('regress_outbox_a', 'operator');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.revoke_access('regress_outbox_a', 'operator');
SELECT outbox.grant_access('regress_outbox_a', 'monitor');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.revoke_access('regress_outbox_a', 'monitor');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.revoke_access('regress_outbox_a', 'monitor'); -- again
-- Every routine and every view is in a capability.
SELECT outbox.grant_access('regress_outbox_a', capability) FROM unnest('{producer,worker,operator}'::text[]) AS capability;
SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND NOT has_function_privilege('regress_outbox_a', oid, 'EXECUTE')
   AND obj_description(oid, 'pg_proc') NOT LIKE '%Private.';
SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v' AND NOT has_table_privilege('regress_outbox_a', oid, 'SELECT');
-- Tables are in none.
SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'S')
   AND (has_table_privilege('regress_outbox_a', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege('regress_outbox_a', oid, 'SELECT, UPDATE'));
-- What another capability includes stays.
SELECT outbox.grant_access('regress_outbox_a', 'monitor');
SELECT outbox.revoke_access('regress_outbox_a', 'monitor');
SELECT pg_temp.try('regress_outbox_a', 'SELECT * FROM outbox.stats');
SELECT outbox.revoke_access('regress_outbox_a', 'producer'), outbox.revoke_access('regress_outbox_a', 'worker');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.revoke_access('regress_outbox_a', 'operator');
SELECT * FROM pg_temp.holds('regress_outbox_a');
-- What was granted by hand is none of its business, nor is USAGE while there is such.
GRANT USAGE ON SCHEMA outbox TO regress_outbox_a;
GRANT EXECUTE ON FUNCTION outbox.purge TO regress_outbox_a;
SELECT outbox.grant_access('regress_outbox_a', 'monitor'), outbox.revoke_access('regress_outbox_a', 'monitor');
SELECT * FROM pg_temp.holds('regress_outbox_a');
REVOKE ALL ON FUNCTION outbox.purge FROM regress_outbox_a;
REVOKE ALL ON SCHEMA outbox FROM regress_outbox_a;

-- It works: an operator grants without being anything else; a monitor sees numbers, no payload, no error, no token.
SELECT outbox.grant_access('regress_outbox_a', 'operator'), outbox.grant_access('regress_outbox_b', 'monitor');
SELECT pg_temp.try('regress_outbox_b', statement) FROM unnest('{SELECT * FROM outbox.stats,SELECT * FROM outbox.status,SELECT * FROM outbox.message,
  SELECT * FROM outbox.delivery,"SELECT outbox.grant_access(''regress_outbox_b'', ''operator'')",SELECT outbox.purge(),SELECT outbox.claim(''w'')}'::text[]) AS statement;
SELECT pg_temp.try('regress_outbox_a', $$SELECT outbox.grant_access('regress_Outbox "quoted"', 'producer')$$);
SELECT pg_temp.try('regress_Outbox "quoted"', $$SELECT outbox.append('t', 'e', '1')$$);
SELECT pg_temp.try('regress_outbox_a', $$SELECT outbox.revoke_access('regress_Outbox "quoted"', 'producer')$$);
SELECT pg_temp.try('regress_Outbox "quoted"', $$SELECT outbox.append('t', 'e', '1')$$);
SELECT outbox.revoke_access('regress_outbox_a', 'operator'), outbox.revoke_access('regress_outbox_b', 'monitor');

-- Errors. Nothing for PUBLIC, and no role is made.
SELECT outbox.grant_access('public', 'producer');
SELECT outbox.grant_access('PUBLIC', 'producer');
SELECT outbox.grant_access('current_user', 'producer');
SELECT outbox.grant_access('none', 'producer');
SELECT outbox.grant_access('', 'producer');
SELECT outbox.revoke_access('no such role', 'producer');
SELECT outbox.grant_access('regress_OUTBOX_a', 'producer');
SELECT outbox.grant_access('regress_outbox_a', 'Producer');
SELECT outbox.grant_access('regress_outbox_a', '');
SELECT outbox.grant_access('regress_outbox_a', 'operator:t');
SELECT outbox.revoke_access('regress_outbox_a', 'monitor:t');
SELECT outbox.grant_access('regress_outbox_a', 'producer:');
SELECT outbox.grant_access('regress_outbox_a', E'worker:a\tb');
SELECT outbox.grant_access('regress_outbox_a', 'worker:' || repeat('x', 256));
SELECT outbox.grant_access(NULL, 'producer');
SELECT outbox.grant_access('regress_outbox_a', NULL);
SELECT outbox.revoke_access(NULL, 'producer');
SELECT outbox.revoke_access('regress_outbox_a', NULL);
SELECT * FROM pg_temp.holds('regress_outbox_a');

-- Per topic: a producer of one topic, then of two, and of one with a colon in its name.
SELECT outbox.grant_access('regress_outbox_a', 'producer:orders');
SELECT pg_temp.try('regress_outbox_a', format($$SELECT outbox.append(%L, 'e', '1')$$, topic)),
       pg_temp.try('regress_outbox_a', format($$SELECT outbox.append_batch(%L, '[]')$$, topic)) FROM unnest('{orders,bills,Orders}'::text[]) AS topic;
SELECT outbox.grant_access('regress_outbox_a', 'producer:bills'), outbox.grant_access('regress_outbox_a', 'producer:a:b'),
       outbox.grant_access('regress_outbox_a', 'producer:bills');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT topic, left(pg_temp.try('regress_outbox_a', format($$SELECT outbox.append(%L, 'e', '1')$$, topic)), 5) FROM unnest('{orders,bills,a:b,a}'::text[]) AS topic;
SELECT outbox.revoke_access('regress_outbox_a', 'producer:orders'), outbox.revoke_access('regress_outbox_a', 'producer:orders');
SELECT topic, left(pg_temp.try('regress_outbox_a', format($$SELECT outbox.append(%L, 'e', '1')$$, topic)), 5) FROM unnest('{orders,bills}'::text[]) AS topic;
-- The last topic takes the privilege along.
SELECT outbox.revoke_access('regress_outbox_a', 'producer:bills'), outbox.revoke_access('regress_outbox_a', 'producer:a:b');
SELECT * FROM pg_temp.holds('regress_outbox_a');
-- The whole capability includes its topics, and losing it is losing them.
SELECT outbox.grant_access('regress_outbox_a', 'producer:orders'), outbox.grant_access('regress_outbox_a', 'producer');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT outbox.grant_access('regress_outbox_a', 'producer:bills'), outbox.revoke_access('regress_outbox_a', 'producer:orders');
SELECT * FROM pg_temp.holds('regress_outbox_a');
SELECT left(pg_temp.try('regress_outbox_a', $$SELECT outbox.append('other', 'e', '1')$$), 5);
SELECT outbox.revoke_access('regress_outbox_a', 'producer');
SELECT outbox.grant_access('regress_outbox_a', 'producer:orders'), outbox.revoke_access('regress_outbox_a', 'producer');
SELECT * FROM pg_temp.holds('regress_outbox_a');

-- A worker of one topic: claims, waits and answers for that one.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append(topic, 'e', '1')) FROM unnest('{orders,orders,bills,bills}'::text[]) AS topic;
SELECT outbox.grant_access('regress_outbox_a', 'worker:orders');
SELECT statement, pg_temp.try('regress_outbox_a', statement) FROM unnest('{"SELECT outbox.claim(''w'', ''orders'', 1)","SELECT outbox.claim(''w'', ''bills'')",
  SELECT outbox.claim(''w''),"SELECT outbox.claim(''w'', ''bills'', wait_seconds => 60)",CALL outbox.wait(''bills''),CALL outbox.wait()}'::text[]) AS statement;
SELECT token FROM outbox.claim('owner', 'orders', 1) \gset orders_
SELECT token FROM outbox.claim('owner', 'bills', 1) \gset bills_
SELECT answer, left(pg_temp.try('regress_outbox_a', format('SELECT outbox.%s(%L)', answer, :'bills_token')), 5) AS bills,
       left(pg_temp.try('regress_outbox_a', format('SELECT outbox.%s(%L)', answer, :'orders_token')), 5) AS orders
  FROM unnest('{extend,release,fail,abandon,complete}'::text[]) AS answer;
SELECT pg_temp.try('regress_outbox_a', format('SELECT * FROM outbox.complete_batch(%L)', ARRAY[:'bills_token', :'orders_token']));
SELECT pg_temp.try('regress_outbox_a', format('SELECT outbox.complete(%L)', gen_random_uuid()));
SELECT pg_temp.try('regress_outbox_a', $$SELECT outbox.consume_once('c', gen_random_uuid())$$);
SELECT outbox.complete(:'bills_token');
SELECT outbox.revoke_access('regress_outbox_a', 'worker:orders');
SELECT * FROM pg_temp.holds('regress_outbox_a');

-- Rights add up, over memberships; the other capability, the owner and superusers are not concerned.
SELECT outbox.grant_access('regress_outbox_a', 'producer:orders'), outbox.grant_access('regress_outbox_b', 'producer:bills');
CREATE FUNCTION pg_temp.may_append(role text) RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(topic, ' ' ORDER BY topic) FROM unnest('{orders,bills,other}'::text[]) AS topic
   WHERE pg_temp.try(role, format('SELECT outbox.append(%L, %L, %L)', topic, 'e', '1')) = 'ok' $$;
SELECT pg_temp.may_append('regress_outbox_a') AS a, pg_temp.may_append('regress_outbox_b') AS b;
GRANT regress_outbox_b TO regress_outbox_a;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
SELECT outbox.revoke_access('regress_outbox_b', 'producer:bills'), outbox.grant_access('regress_outbox_b', 'producer');
SELECT pg_temp.may_append('regress_outbox_a') AS a;
REVOKE regress_outbox_b FROM regress_outbox_a;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
SELECT outbox.revoke_access('regress_outbox_b', 'producer');
GRANT USAGE ON SCHEMA outbox TO regress_outbox_b;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA outbox TO regress_outbox_b; -- by hand, without a row: no right
SELECT left(pg_temp.try('regress_outbox_b', statement), 5) FROM unnest('{"SELECT outbox.append(''t'', ''e'', ''1'')","SELECT outbox.append_batch(''t'', ''[]'')",
  "SELECT outbox.claim(''w'')","SELECT outbox.claim(''w'', ''t'')",CALL outbox.wait(),"SELECT outbox.consume_once(''c'', gen_random_uuid())"}'::text[]) AS statement;
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA outbox FROM regress_outbox_b;
GRANT EXECUTE ON FUNCTION outbox.append TO regress_outbox_b;
SELECT pg_temp.may_append('regress_outbox_b') AS b;
GRANT regress_outbox_a TO regress_outbox_b;
SELECT pg_temp.may_append('regress_outbox_b') AS b;
REVOKE EXECUTE ON FUNCTION outbox.append FROM regress_outbox_b;
SELECT pg_temp.may_append('regress_outbox_b') AS b;
REVOKE regress_outbox_a FROM regress_outbox_b;
REVOKE USAGE ON SCHEMA outbox FROM regress_outbox_b;
SELECT outbox.append('other', 'e', '1') IS NOT NULL AS superuser, pg_temp.may_append(current_user) AS itself;
ALTER ROLE regress_outbox_a SUPERUSER;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
ALTER ROLE regress_outbox_a NOSUPERUSER;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
-- The same session as one role and the other; and a function with its owner's rights, within one with the caller's, within one with another's.
SELECT outbox.grant_access('regress_outbox_b', 'producer:bills');
CREATE SCHEMA inner_a AUTHORIZATION regress_outbox_a;
CREATE SCHEMA outer_b AUTHORIZATION regress_outbox_b;
GRANT USAGE ON SCHEMA inner_a, outer_b TO PUBLIC;
\set SHOW_CONTEXT never
SET ROLE regress_outbox_a;
CREATE FUNCTION inner_a.append(topic text) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$ SELECT outbox.append($1, 'e', '1') IS NOT NULL $$;
SELECT outbox.append('orders', 'e', '1') IS NOT NULL AS appended;
SET ROLE regress_outbox_b;
CREATE FUNCTION outer_b.invoker(topic text) RETURNS boolean LANGUAGE sql AS $$ SELECT outbox.append($1, 'e', '1') IS NOT NULL $$;
CREATE FUNCTION outer_b.both(topic text, other text) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$ SELECT outer_b.invoker($1) AND inner_a.append($2) $$;
SELECT outbox.append('orders', 'e', '1');
SELECT outer_b.both('bills', 'orders'), inner_a.append('orders');
SELECT outer_b.both('orders', 'orders');
SELECT outer_b.both('bills', 'bills');
SELECT inner_a.append('bills');
SET ROLE regress_outbox_a;
SELECT outer_b.both('bills', 'orders');
SELECT outer_b.invoker('bills');
RESET ROLE;
SET SESSION AUTHORIZATION regress_outbox_b;
SELECT outbox.append('bills', 'e', '1') IS NOT NULL AS appended;
SELECT outbox.append('orders', 'e', '1');
RESET SESSION AUTHORIZATION;

-- In one transaction with the grant, and after its rollback.
BEGIN;
SELECT outbox.grant_access('regress_outbox_a', 'producer:bills');
SELECT pg_temp.may_append('regress_outbox_a') AS a;
SAVEPOINT s;
SELECT outbox.revoke_access('regress_outbox_a', 'producer:orders');
SELECT pg_temp.may_append('regress_outbox_a') AS a;
ROLLBACK TO s;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
ROLLBACK;
SELECT pg_temp.may_append('regress_outbox_a') AS a;
-- A role that is renamed keeps its topics, also if two exchange their names; one that is dropped leaves nothing behind for
-- the next of that name.
ALTER ROLE regress_outbox_a RENAME TO regress_outbox_c;
SELECT pg_temp.may_append('regress_outbox_c') AS c;
ALTER ROLE regress_outbox_b RENAME TO regress_outbox_a;
SELECT pg_temp.may_append('regress_outbox_a') AS a, pg_temp.may_append('regress_outbox_c') AS c;
SELECT role, capability, topic FROM outbox.access ORDER BY 1, 3;
SELECT outbox.purge();
SELECT role, capability, topic FROM outbox.access ORDER BY 1, 3;
SELECT pg_temp.may_append('regress_outbox_a') AS a, pg_temp.may_append('regress_outbox_c') AS c;
ALTER ROLE regress_outbox_a RENAME TO regress_outbox_b;
SELECT outbox.revoke_access('regress_outbox_b', 'producer:other'), outbox.grant_access('regress_outbox_b', 'producer:other');
SELECT role, capability, topic FROM outbox.access ORDER BY 1, 3;
\set VERBOSITY terse
DROP ROLE regress_outbox_c;
\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA inner_a, outer_b CASCADE;
RESET client_min_messages;
DROP OWNED BY regress_outbox_c;
SELECT * FROM pg_temp.holds('regress_outbox_c');
DROP ROLE regress_outbox_c;
CREATE ROLE regress_outbox_c;
SELECT pg_temp.may_append('regress_outbox_c') AS c;
SELECT outbox.revoke_access('regress_outbox_b', 'producer');
SELECT count(*) AS leftover_rows FROM outbox.access;
-- Rows decide. One written by hand, or by a restore, is given; one whose role is missing is given when the role is there
-- and somebody has looked; one that is removed is taken.
INSERT INTO outbox.access VALUES ('regress_outbox_b', 'producer', 'orders'), ('regress_outbox_d', 'producer', 'bills'), ('regress_outbox_d', 'monitor', '*');
SELECT * FROM pg_temp.holds('regress_outbox_b');
SELECT ok, detail FROM outbox.status WHERE name = 'access';
CREATE ROLE regress_outbox_d;
SELECT * FROM pg_temp.holds('regress_outbox_d');
SELECT outbox.purge();
SELECT * FROM pg_temp.holds('regress_outbox_d');
SELECT pg_temp.may_append('regress_outbox_b') AS b, pg_temp.may_append('regress_outbox_d') AS d;
SELECT ok, detail FROM outbox.status WHERE name = 'access';
DELETE FROM outbox.access WHERE topic = 'bills';
SELECT * FROM pg_temp.holds('regress_outbox_d');
SELECT pg_temp.may_append('regress_outbox_d') AS d;
TRUNCATE outbox.access;
SELECT * FROM pg_temp.holds('regress_outbox_b');
SELECT * FROM pg_temp.holds('regress_outbox_d');
-- Of a role that never was, too, rows can be revoked; but there must be one or the other.
INSERT INTO outbox.access VALUES ('regress_outbox_nobody', 'producer', 'orders');
SELECT outbox.revoke_access('regress_outbox_nobody', 'worker');
SELECT outbox.revoke_access('regress_outbox_nobody', 'producer');
SELECT count(*) AS leftover_rows FROM outbox.access;
-- Capabilities that are unknown give nothing, nor does the owner's own.
INSERT INTO outbox.access VALUES ('regress_outbox_d', 'emperor', '*'), ('regress_outbox_d', 'producer', 'a'), (current_user, 'producer', 'a');
SELECT * FROM pg_temp.holds('regress_outbox_d');
SELECT outbox.append('other', 'e', '1') IS NOT NULL AS owner;
TRUNCATE outbox.access;
-- All topics, written out.
SELECT outbox.grant_access('regress_outbox_d', 'producer:a'), outbox.grant_access('regress_outbox_d', 'producer:*'), outbox.grant_access('regress_outbox_d', 'worker');
SELECT * FROM pg_temp.holds('regress_outbox_d') WHERE kind = 'right';
SELECT outbox.revoke_access('regress_outbox_d', 'producer:*'), outbox.revoke_access('regress_outbox_d', 'worker');
SELECT * FROM pg_temp.holds('regress_outbox_d');
-- What rows give counts as initial privilege, so that no dump carries it; what was granted by hand does not.
SELECT outbox.grant_access('regress_outbox_d', 'monitor');
GRANT EXECUTE ON FUNCTION outbox.purge TO regress_outbox_d;
SELECT objoid::regproc, initprivs FROM pg_init_privs WHERE classoid = 'pg_proc'::regclass AND initprivs::text LIKE '%regress_outbox_d%' ORDER BY objoid::regproc::text;
SELECT outbox.revoke_access('regress_outbox_d', 'monitor');
SELECT objoid::regproc, initprivs FROM pg_init_privs WHERE classoid = 'pg_proc'::regclass AND initprivs::text LIKE '%regress_outbox_d%' ORDER BY objoid::regproc::text;
REVOKE EXECUTE ON FUNCTION outbox.purge FROM regress_outbox_d;
DROP ROLE regress_outbox_d;
-- An update replaces functions: privileges stay.
SELECT outbox.grant_access('regress_outbox_b', 'producer:orders');
SELECT pg_get_functiondef('outbox.append'::regproc) AS definition \gset
:definition;
SELECT pg_temp.may_append('regress_outbox_b') AS b;
-- What was left by a privilege that was taken by hand does not come back.
REVOKE EXECUTE ON FUNCTION outbox.append FROM regress_outbox_b;
SELECT outbox.grant_access('regress_outbox_b', 'producer:bills');
SELECT pg_temp.may_append('regress_outbox_b') AS b;
SELECT outbox.revoke_access('regress_outbox_b', 'producer:bills');
SELECT * FROM pg_temp.holds('regress_outbox_b');
DROP ROLE regress_outbox_b, regress_outbox_c, "regress_Outbox ""quoted""";
