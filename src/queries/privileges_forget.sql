-- Rights of roles that are gone, or were deprived of what they gave. Behind privileges.sql.
DELETE FROM outbox.access AS a
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE oid = a.number) AND a.number IS NOT NULL
    OR EXISTS (SELECT FROM capability AS c JOIN object AS o ON o.name = c.first
                WHERE c.name = a.capability AND (o.class, o.oid, a.number) IN (TABLE given)
                  AND (o.class, o.oid, a.number) NOT IN (TABLE held))
