-- $1 default retention in days, $2 most messages, $3 the shortest retention of any topic, $4 number of the first
-- message too young for it. One row per message deleted; a receipt goes with the last of its messages.
WITH finished AS MATERIALIZED (
    SELECT r.first, r.last, e.seq, e.members
      FROM outbox.receipt AS r
     CROSS JOIN LATERAL (
            SELECT m.seq, m.topic, count(*) OVER () AS members
              FROM (SELECT seq, topic FROM outbox.envelope
                     WHERE r.seqs IS NULL AND seq BETWEEN r.first AND r.last
                     UNION ALL
                    SELECT seq, topic FROM outbox.envelope WHERE seq = ANY (r.seqs)) AS m) AS e
      LEFT JOIN outbox.topic AS t ON t.topic = e.topic
     WHERE r.first < $4
       AND r.delivered_at < clock_timestamp() - make_interval(secs => 86400.0 * $3)
       AND r.delivered_at < clock_timestamp() - make_interval(secs => 86400.0 * coalesce(t.retention_days, $1))
     ORDER BY r.first, e.seq
     LIMIT $2
       FOR UPDATE OF r SKIP LOCKED
), receipts AS (
    DELETE FROM outbox.receipt AS r
     USING (SELECT first, last FROM finished GROUP BY first, last, members HAVING count(*) = members) AS f
     WHERE r.first = f.first AND r.last = f.last
)
DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
RETURNING 1
