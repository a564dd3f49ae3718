-- $1 role, $2 capability, $3 topic. All topics include each.
WITH included AS (
    DELETE FROM outbox.access WHERE role = $1 AND capability = $2 AND $3 = '*' AND topic <> '*')
INSERT INTO outbox.access (role, capability, topic)
SELECT $1, $2, $3
 WHERE NOT EXISTS (SELECT FROM outbox.access WHERE role = $1 AND capability = $2 AND topic IN ('*', $3))
