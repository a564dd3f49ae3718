-- surface: the whole catalog of the extension; a change of anything a user can see shows here.
SET search_path = '';

-- Everything it has is in its schema, and the schema has nothing else.
SELECT nspname AS schema, extrelocatable AS relocatable FROM pg_catalog.pg_extension JOIN pg_catalog.pg_depend ON refobjid = pg_extension.oid AND deptype = 'e'
  JOIN pg_catalog.pg_namespace ON classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND objid = pg_namespace.oid WHERE extname = 'outbox';
SELECT type, pg_catalog.count(*) FILTER (WHERE schema = 'outbox' OR schema IS NULL AND identity = 'outbox') AS inside, pg_catalog.count(*) AS members
  FROM pg_catalog.pg_depend, LATERAL pg_catalog.pg_identify_object(classid, objid, 0)
 WHERE refobjid = (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'outbox') AND deptype = 'e' GROUP BY type ORDER BY type COLLATE "C";
SELECT 'function' AS kind, proname AS name FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objid = pg_proc.oid AND deptype = 'e')
UNION ALL
SELECT 'relation', relname FROM pg_catalog.pg_class WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND relkind IN ('r', 'v', 'S', 'm', 'f', 'p')
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND objid = pg_class.oid AND deptype = 'e');
-- It does not hang on a schema that a user may drop.
SELECT extnamespace::pg_catalog.regnamespace IN ('pg_catalog', 'outbox') AS independent FROM pg_catalog.pg_extension WHERE extname = 'outbox';

-- Functions: one per name, VOLATILE, PARALLEL UNSAFE, not STRICT.
SELECT proname AS name, pg_catalog.pg_get_function_arguments(oid) AS arguments FROM pg_catalog.pg_proc
 WHERE pronamespace = 'outbox'::pg_catalog.regnamespace ORDER BY proname;
SELECT proname AS name, pg_catalog.pg_get_function_result(pg_proc.oid) AS result, prokind AS kind, provolatile AS volatile, proparallel AS parallel,
       proisstrict AS strict, proleakproof AS leakproof, prosecdef AS definer, proconfig AS config, lanname AS language, probin AS library
  FROM pg_catalog.pg_proc JOIN pg_catalog.pg_language ON pg_language.oid = prolang
 WHERE pronamespace = 'outbox'::pg_catalog.regnamespace ORDER BY proname;
SELECT proname AS overloaded FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace GROUP BY proname HAVING pg_catalog.count(*) > 1;
-- Arguments are of types that bind in every driver.
SELECT type, pg_catalog.count(*) FROM pg_catalog.pg_proc, LATERAL pg_catalog.unnest(proargtypes) AS t, LATERAL pg_catalog.format_type(t, NULL) AS type
 WHERE pronamespace = 'outbox'::pg_catalog.regnamespace GROUP BY type ORDER BY type COLLATE "C";

-- Relations and their columns; columns of the types that users see, claimed and the views, in order.
SELECT relname AS name, relkind AS kind, relpersistence AS persistence, reloptions AS options, relhastriggers AS triggers, relhasrules AS rules, relrowsecurity AS policies
  FROM pg_catalog.pg_class WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND relkind <> 'i' ORDER BY relkind, relname;
SELECT relname AS relation, attnum AS n, attname AS column, pg_catalog.format_type(atttypid, atttypmod) AS type,
       CASE WHEN attcollation <> 0 THEN (SELECT collname FROM pg_catalog.pg_collation WHERE oid = attcollation) END AS collation,
       attnotnull AS required, pg_catalog.pg_get_expr(adbin, adrelid) AS default
  FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_class ON pg_class.oid = attrelid LEFT JOIN pg_catalog.pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND relkind IN ('r', 'v', 'c') AND attnum > 0 AND NOT attisdropped ORDER BY relkind, relname, attnum;
SELECT tablename AS "table", indexdef FROM pg_catalog.pg_indexes WHERE schemaname = 'outbox' ORDER BY tablename, indexname;
-- All indexes are valid and, as their columns' collation, bytewise.
SELECT indexrelid::pg_catalog.regclass FROM pg_catalog.pg_index JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
 WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND (NOT indisvalid OR EXISTS (SELECT FROM pg_catalog.unnest(indcollation) AS c
       WHERE c NOT IN (0, (SELECT oid FROM pg_catalog.pg_collation WHERE collname = 'C' AND collnamespace = 'pg_catalog'::pg_catalog.regnamespace))));
-- Constraints: no foreign key, and no check that a user's input could reach.
SELECT conrelid::pg_catalog.regclass AS "table", conname AS name, contype AS type, condeferrable AS deferrable
  FROM pg_catalog.pg_constraint WHERE connamespace = 'outbox'::pg_catalog.regnamespace AND contype <> 'n' ORDER BY conname;
SELECT sequencename AS sequence, data_type AS type, start_value AS start, min_value AS min, max_value AS max, increment_by AS step, cycle, cache_size AS cache
  FROM pg_catalog.pg_sequences WHERE schemaname = 'outbox';

-- Grants: to the owner only.
SELECT kind, name, pg_catalog.string_agg(DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' WHEN owner THEN 'owner' ELSE grantee::pg_catalog.regrole::pg_catalog.text END, ', ') AS grantees,
       pg_catalog.string_agg(privilege_type, ', ' ORDER BY privilege_type COLLATE "C") AS privileges
  FROM (SELECT 'schema' AS kind, nspname AS name, nspowner AS owner, nspacl AS acl FROM pg_catalog.pg_namespace WHERE nspname = 'outbox'
        UNION ALL SELECT 'function', proname, proowner, proacl FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace
        UNION ALL SELECT 'type', typname, typowner, typacl FROM pg_catalog.pg_type WHERE typnamespace = 'outbox'::pg_catalog.regnamespace AND typname = 'claimed') AS o,
       LATERAL pg_catalog.aclexplode(acl)
 GROUP BY kind, name ORDER BY kind COLLATE "C", name;

-- Every public object says what it is; so does every private one that a user can meet.
SELECT 'schema' AS kind, nspname AS name FROM pg_catalog.pg_namespace WHERE nspname = 'outbox' AND pg_catalog.obj_description(oid, 'pg_namespace') IS NULL
UNION ALL
SELECT 'extension', extname FROM pg_catalog.pg_extension WHERE extname = 'outbox' AND pg_catalog.obj_description(oid, 'pg_extension') IS NULL
UNION ALL
SELECT 'function', proname FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace AND pg_catalog.obj_description(oid, 'pg_proc') IS NULL
UNION ALL
SELECT 'relation', relname FROM pg_catalog.pg_class WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND relkind <> 'i'
   AND coalesce(pg_catalog.obj_description(oid, 'pg_class'), pg_catalog.obj_description(reltype, 'pg_type')) IS NULL;
SELECT proname AS function, pg_catalog.obj_description(oid, 'pg_proc') AS comment FROM pg_catalog.pg_proc
 WHERE pronamespace = 'outbox'::pg_catalog.regnamespace ORDER BY proname;

-- What pg_dump takes along: the rows of every table and the state of the sequence, all of them.
SELECT pg_class.oid::pg_catalog.regclass AS relation, config IS NOT NULL AS dumped, extcondition[n] = '' AS completely
  FROM pg_catalog.pg_class LEFT JOIN (pg_catalog.pg_extension CROSS JOIN LATERAL pg_catalog.unnest(extconfig) WITH ORDINALITY AS c (config, n))
    ON extname = 'outbox' AND config = pg_class.oid
 WHERE relnamespace = 'outbox'::pg_catalog.regnamespace AND relkind IN ('r', 'S') ORDER BY relname;
