-- $1 role, $2 capability, $3 topic. All topics include each.
DELETE FROM outbox.access WHERE role = $1 AND capability = $2 AND ($3 = '*' OR topic = $3)
