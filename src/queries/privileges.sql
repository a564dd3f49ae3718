-- What outbox.access gives (due), what was given for it (given: the initial privileges, which no dump carries), and what
-- roles hold (held). In front are the functions that each capability includes (included), a statement follows.
capability (name, objects, first) AS (
    SELECT i.capability, array_agg(i.name) || '{outbox}' || c.views, c.first
      FROM included AS i
      JOIN (VALUES ('producer', '{}'::text[], 'append'), ('worker', '{}', 'claim'),
                   ('operator', '{message,stats,status}', 'retry_dead'), ('monitor', '{stats,status}', 'read_stats'))
           AS c (name, views, first) ON c.name = i.capability
     GROUP BY i.capability, c.views, c.first
), object AS MATERIALIZED (
    SELECT o.*, i.initprivs AS initial
      FROM (SELECT 'pg_proc'::regclass AS class, oid, proname AS name, proowner AS owner, proacl AS acl,
                   'EXECUTE' AS privilege, format('ROUTINE %s', oid::regprocedure) AS target
              FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
            UNION ALL
            SELECT 'pg_class', oid, relname, relowner, relacl, 'SELECT', format('outbox.%I', relname)
              FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'
            UNION ALL
            SELECT 'pg_namespace', oid, nspname, nspowner, nspacl, 'USAGE', 'SCHEMA outbox'
              FROM pg_namespace WHERE nspname = 'outbox') AS o
      JOIN pg_init_privs AS i ON (i.classoid, i.objoid, i.objsubid) = (o.class, o.oid, 0)
), due AS MATERIALIZED (
    SELECT DISTINCT o.class, o.oid, r.oid AS role
      FROM outbox.access AS a
      JOIN pg_roles AS r ON r.oid = a.number
      JOIN capability AS c ON c.name = a.capability
      JOIN object AS o ON o.name = ANY (c.objects) AND o.owner <> r.oid
), given AS MATERIALIZED (
    SELECT o.class, o.oid, i.grantee AS role
      FROM object AS o CROSS JOIN LATERAL aclexplode(o.initial) AS i
     WHERE i.grantee <> i.grantor
), held AS MATERIALIZED (
    SELECT o.class, o.oid, h.grantee AS role
      FROM object AS o CROSS JOIN LATERAL aclexplode(o.acl) AS h
     WHERE h.privilege_type = o.privilege
)
