-- $1 a table of ours, $2 its alias. One row: a condition that no row of another table refers to the row, as far as we
-- may read that table. A foreign key that acts on a delete (CASCADE, SET NULL) holds nothing back.
SELECT coalesce(string_agg(format('AND NOT EXISTS (SELECT FROM %s AS f WHERE %s)', c.conrelid::regclass, k.condition),
                           ' ' ORDER BY c.oid), '')
  FROM pg_constraint AS c
  JOIN pg_class AS r ON r.oid = c.conrelid
 CROSS JOIN LATERAL (
        SELECT string_agg(format('f.%I = %s.%I', theirs.attname, $2, ours.attname), ' AND ') AS condition,
               bool_and(theirs.atttypid = ours.atttypid) AS alike
          FROM unnest(c.conkey, c.confkey) AS pair (their, our)
          JOIN pg_attribute AS theirs ON theirs.attrelid = c.conrelid AND theirs.attnum = pair.their
          JOIN pg_attribute AS ours ON ours.attrelid = c.confrelid AND ours.attnum = pair.our) AS k
 WHERE c.contype = 'f' AND c.confrelid = $1::regclass AND c.confdeltype IN ('a', 'r') AND c.conparentid = 0
   AND k.alike AND NOT row_security_active(r.oid) AND has_table_privilege(r.oid, 'SELECT')
