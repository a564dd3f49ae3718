-- $1 default retention in days, $2 most messages, $3 the shortest retention of any topic, $4 number of the first
-- message too young for it, $5 where to begin, $6 whether receipts without messages are left. One row: how many were
-- deleted, and where the next call goes on, if there may be more. A message that has a delivery is not over. A receipt
-- goes with the last of its messages; before, it is made to cover exactly those that are left. %REFERENCES% is for
-- foreign keys to m.
WITH candidate AS MATERIALIZED (
    SELECT r.first, r.last, m.seq, m.members
      FROM outbox.receipt AS r
      LEFT JOIN LATERAL (
            SELECT e.seq, e.id, e.topic, count(*) OVER () AS members
              FROM (SELECT seq, id, topic FROM outbox.envelope
                     WHERE r.seqs IS NULL AND seq BETWEEN r.first AND r.last
                     UNION ALL
                    SELECT seq, id, topic FROM outbox.envelope WHERE seq = ANY (r.seqs)) AS e
             WHERE NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.seq = e.seq)) AS m ON true
      LEFT JOIN outbox.topic AS t ON t.topic = m.topic
     CROSS JOIN LATERAL (SELECT make_interval(secs => 86400.0 * coalesce(t.retention_days, $1)) AS retention) AS k
     WHERE r.first >= $5 AND r.first < $4 AND (m.seq IS NOT NULL OR NOT $6)
       AND NOT r.delivered_at BETWEEN clock_timestamp() - make_interval(secs => 86400.0 * $3)
                                  AND clock_timestamp() + make_interval(secs => 86400.0 * $3)
       AND NOT r.delivered_at BETWEEN clock_timestamp() - retention AND clock_timestamp() + retention
       %REFERENCES%
     ORDER BY r.first, m.seq
     LIMIT $2
       FOR UPDATE OF r SKIP LOCKED
), free AS MATERIALIZED (
    SELECT seq FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM candidate)) FOR UPDATE SKIP LOCKED
), finished AS (
    DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM free))
    RETURNING seq
), receipt AS MATERIALIZED (
    SELECT c.first, c.last, count(f.seq) AS gone, coalesce(c.members, 0) AS members,
           array_agg(f.seq) FILTER (WHERE f.seq IS NOT NULL) AS seqs
      FROM candidate AS c
      LEFT JOIN finished AS f ON f.seq = c.seq
     GROUP BY c.first, c.last, c.members
), whole AS (
    DELETE FROM outbox.receipt AS r USING receipt AS c
     WHERE r.first = c.first AND r.last = c.last AND c.gone = c.members
), part AS (
    UPDATE outbox.receipt AS r
       SET first = s.seqs[1], last = s.seqs[cardinality(s.seqs)],
           seqs = CASE WHEN s.seqs[cardinality(s.seqs)] - s.seqs[1] >= cardinality(s.seqs) THEN s.seqs END
      FROM receipt AS c
     CROSS JOIN LATERAL (
            SELECT array_agg(e.seq ORDER BY e.seq) AS seqs
              FROM outbox.receipt AS a
              JOIN outbox.envelope AS e ON e.seq BETWEEN a.first AND a.last
             WHERE a.first = c.first AND a.last = c.last
               AND (a.seqs IS NULL OR e.seq = ANY (a.seqs))
               AND e.seq <> ALL (c.seqs)
               AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.seq = e.seq)) AS s
     WHERE r.first = c.first AND r.last = c.last AND c.gone BETWEEN 1 AND c.members - 1
)
SELECT (SELECT count(*) FROM finished), (SELECT max(first) FROM candidate HAVING count(*) = $2)
