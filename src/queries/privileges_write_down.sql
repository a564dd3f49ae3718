-- $1 catalog, $2 object, $3 its initial privileges. A superuser runs it, so no name may be anybody's but the catalog's.
UPDATE pg_catalog.pg_init_privs SET initprivs = $3::pg_catalog.aclitem[]
 WHERE classoid OPERATOR(pg_catalog.=) $1 AND objoid OPERATOR(pg_catalog.=) $2 AND objsubid OPERATOR(pg_catalog.=) 0
