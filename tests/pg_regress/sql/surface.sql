-- surface: the whole catalog of the extension; a change of anything a user can see shows here.
SET search_path = '';

-- Everything it has is in its schema, and the schema has nothing else.
SELECT nspname AS schema, extrelocatable AS relocatable
  FROM pg_extension JOIN pg_depend ON refobjid = pg_extension.oid AND deptype = 'e'
  JOIN pg_namespace ON classid = 'pg_namespace'::regclass AND objid = pg_namespace.oid WHERE extname = 'outbox';
SELECT type, count(*) FILTER (WHERE schema = 'outbox' OR schema IS NULL AND identity = 'outbox') AS inside, count(*) AS members
  FROM pg_depend, LATERAL pg_identify_object(classid, objid, 0)
 WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox') AND deptype = 'e'
   AND (classid, objid) NOT IN (SELECT 'pg_type'::regclass, pg_type.oid FROM pg_type LEFT JOIN pg_class ON pg_class.oid = typrelid
                                 WHERE typcategory = 'A' OR relkind <> 'c') -- what a table makes by the way is a member since 17
 GROUP BY type ORDER BY type COLLATE "C";
SELECT 'function' AS kind, proname AS name FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e')
UNION ALL
SELECT 'relation', relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'S', 'm', 'f', 'p')
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e');
-- It does not hang on a schema that a user may drop.
SELECT extnamespace::regnamespace IN ('pg_catalog', 'outbox') AS independent FROM pg_extension WHERE extname = 'outbox';

-- Functions: one per name, VOLATILE, PARALLEL UNSAFE, not STRICT.
SELECT proname AS name, pg_get_function_arguments(oid) AS arguments FROM pg_proc
 WHERE pronamespace = 'outbox'::regnamespace ORDER BY proname;
SELECT proname AS name, pg_get_function_result(pg_proc.oid) AS result, prokind AS kind, provolatile AS volatile, proparallel AS parallel,
       proisstrict AS strict, proleakproof AS leakproof, prosecdef AS definer, proconfig AS config, lanname AS language, probin AS library
  FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
 WHERE pronamespace = 'outbox'::regnamespace ORDER BY proname;
SELECT proname AS overloaded FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace GROUP BY proname HAVING count(*) > 1;
-- Arguments are of types that bind in every driver.
SELECT type, count(*) FROM pg_proc, LATERAL unnest(proargtypes) AS t, LATERAL format_type(t, NULL) AS type
 WHERE pronamespace = 'outbox'::regnamespace GROUP BY type ORDER BY type COLLATE "C";

-- Relations and their columns; columns of the types that users see, claimed and the views, in order.
SELECT relname AS name, relkind AS kind, relpersistence AS persistence, reloptions AS options, relhastriggers AS triggers,
       relhasrules AS rules, relrowsecurity AS policies
  FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind <> 'i' ORDER BY relkind, relname;
SELECT relname AS relation, attnum AS n, attname AS column, format_type(atttypid, atttypmod) AS type,
       CASE WHEN attcollation <> 0 THEN (SELECT collname FROM pg_collation WHERE oid = attcollation) END AS collation,
       attnotnull AS required, pg_get_expr(adbin, adrelid) AS default
  FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'c') AND attnum > 0 AND NOT attisdropped
 ORDER BY relkind, relname, attnum;
SELECT tablename AS "table", indexdef FROM pg_indexes WHERE schemaname = 'outbox' ORDER BY tablename, indexname;
-- All indexes are valid and, as their columns' collation, bytewise.
SELECT indexrelid::regclass FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
 WHERE relnamespace = 'outbox'::regnamespace AND (NOT indisvalid OR EXISTS (SELECT FROM unnest(indcollation) AS c
       WHERE c NOT IN (0, (SELECT oid FROM pg_collation WHERE collname = 'C' AND collnamespace = 'pg_catalog'::regnamespace))));
-- Constraints: no foreign key, and no check that a user's input could reach.
SELECT conrelid::regclass AS "table", conname AS name, contype AS type, condeferrable AS deferrable
  FROM pg_constraint WHERE connamespace = 'outbox'::regnamespace AND contype <> 'n' ORDER BY conname;
SELECT sequencename AS sequence, data_type AS type, start_value AS start, min_value AS min, max_value AS max, increment_by AS step, cycle, cache_size AS cache
  FROM pg_sequences WHERE schemaname = 'outbox';

-- Grants: to the owner only.
SELECT kind, name,
       string_agg(DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' WHEN owner THEN 'owner' ELSE grantee::regrole::text END, ', ') AS grantees,
       string_agg(privilege_type, ', ' ORDER BY privilege_type COLLATE "C") AS privileges
  FROM (SELECT 'schema' AS kind, nspname AS name, nspowner AS owner, nspacl AS acl FROM pg_namespace WHERE nspname = 'outbox'
        UNION ALL SELECT 'function', proname, proowner, proacl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'type', typname, typowner, typacl FROM pg_type WHERE typnamespace = 'outbox'::regnamespace AND typname = 'claimed')
       AS o,
       LATERAL aclexplode(acl)
 GROUP BY kind, name ORDER BY kind COLLATE "C", name;

-- Every public object says what it is; so does every private one that a user can meet.
SELECT 'schema' AS kind, nspname AS name FROM pg_namespace WHERE nspname = 'outbox' AND obj_description(oid, 'pg_namespace') IS NULL
UNION ALL
SELECT 'extension', extname FROM pg_extension WHERE extname = 'outbox' AND obj_description(oid, 'pg_extension') IS NULL
UNION ALL
SELECT 'function', proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
UNION ALL
SELECT 'relation', relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind <> 'i'
   AND coalesce(obj_description(oid, 'pg_class'), obj_description(reltype, 'pg_type')) IS NULL;
SELECT proname AS function, obj_description(oid, 'pg_proc') AS comment FROM pg_proc
 WHERE pronamespace = 'outbox'::regnamespace ORDER BY proname;

SELECT relname AS view, obj_description(oid, 'pg_class') AS comment FROM pg_class
 WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v' ORDER BY relname;

-- What pg_dump takes along: the rows of every table and the state of the sequence, all of them.
SELECT pg_class.oid::regclass AS relation, config IS NOT NULL AS dumped, extcondition[n] = '' AS completely
  FROM pg_class LEFT JOIN (pg_extension CROSS JOIN LATERAL unnest(extconfig) WITH ORDINALITY AS c (config, n))
    ON extname = 'outbox' AND config = pg_class.oid
 WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'S') ORDER BY relname;
