-- What is to be granted and revoked. Behind privileges.sql.
SELECT format('%s %s ON %s %s %I', verb, privilege, target, preposition, rolname)
  FROM (SELECT 'GRANT', 'TO', * FROM (TABLE due EXCEPT TABLE given EXCEPT TABLE held) AS g
        UNION ALL
        SELECT 'REVOKE', 'FROM', * FROM (TABLE given INTERSECT TABLE held EXCEPT TABLE due) AS r)
       AS s (verb, preposition, class, oid, role)
  JOIN object USING (class, oid)
  JOIN pg_roles AS r ON r.oid = s.role
