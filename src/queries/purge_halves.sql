-- $1 default retention in days, $2 envelopes to look at, $3 number of the first message too young, $4 where to begin.
-- One row: how many envelopes without delivery and receipt were deleted, and whether there are more to look at.
-- A transaction writes an envelope and its delivery, so a snapshot has both or none. %REFERENCES% is for foreign keys to m.
WITH looked AS MATERIALIZED (
    SELECT seq, id, topic, occurred_at FROM outbox.envelope WHERE seq >= $4 AND seq < $3 ORDER BY seq LIMIT $2
), half AS MATERIALIZED (
    SELECT m.seq
      FROM looked AS m
      LEFT JOIN outbox.topic AS t ON t.topic = m.topic
     CROSS JOIN LATERAL (SELECT make_interval(secs => 86400.0 * coalesce(t.retention_days, $1)) AS retention) AS k
     WHERE NOT m.occurred_at BETWEEN clock_timestamp() - retention AND clock_timestamp() + retention
       AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.seq = m.seq)
       AND NOT EXISTS (SELECT FROM outbox.receipt AS r
                        WHERE r.first <= m.seq AND r.first > m.seq - 65536 AND r.last >= m.seq
                          AND (r.seqs IS NULL OR m.seq = ANY (r.seqs)))
       %REFERENCES%
), free AS MATERIALIZED (
    SELECT seq FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM half)) FOR UPDATE SKIP LOCKED
), envelopes AS (
    DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM free))
    RETURNING 1
)
SELECT (SELECT count(*) FROM envelopes), (SELECT count(*) = $2 FROM looked)
