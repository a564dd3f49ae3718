-- $1 a role. True if it was granted nothing on any routine or relation of ours.
SELECT NOT EXISTS (
    SELECT FROM (SELECT proacl AS acl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
                 UNION ALL
                 SELECT relacl FROM pg_class WHERE relnamespace = 'outbox'::regnamespace) AS o
     CROSS JOIN LATERAL aclexplode(o.acl) AS a
     WHERE a.grantee = $1)
