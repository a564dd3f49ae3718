-- Initial privileges as they should be, where they differ: those that an owner has of himself, and what rows give but for
-- what was granted by hand before. Behind privileges.sql.
SELECT n.class::oid, n.oid, n.initial::text
  FROM (SELECT o.class, o.oid, o.initial AS old,
               ARRAY(SELECT item FROM unnest(o.initial) AS item
                      WHERE EXISTS (SELECT FROM aclexplode(ARRAY[item]) WHERE grantee = grantor))
               || ARRAY(SELECT makeaclitem(role, owner, privilege, false)
                          FROM (TABLE due EXCEPT (TABLE held EXCEPT TABLE given)) AS d
                         WHERE d.class = o.class AND d.oid = o.oid ORDER BY role) AS initial
          FROM object AS o) AS n
 WHERE n.initial <> n.old
