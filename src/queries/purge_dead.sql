-- $1 default retention in days, $2 most messages, $3 topic and $4 number after which to begin. A row per message met,
-- by topic and number: number, topic, key, and whether it was deleted; one whose envelope is locked is not.
-- %REFERENCES% is for foreign keys to d and m.
WITH candidate AS MATERIALIZED (
    SELECT d.seq, d.topic, d.key
      FROM outbox.delivery AS d
      LEFT JOIN outbox.envelope AS m ON m.seq = d.seq
      LEFT JOIN outbox.topic AS t ON t.topic = d.topic
     CROSS JOIN LATERAL (SELECT make_interval(secs => 86400.0 * coalesce(t.retention_days, $1)) AS retention) AS k
     WHERE d.place = 'x' AND (d.topic, d.seq) > ($3, $4)
       AND NOT d.ended_at BETWEEN clock_timestamp() - retention AND clock_timestamp() + retention
       %REFERENCES%
     ORDER BY d.topic, d.seq
     LIMIT $2
       FOR UPDATE OF d SKIP LOCKED
), free AS MATERIALIZED (
    SELECT seq FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM candidate)) FOR UPDATE SKIP LOCKED
), envelopes AS (
    DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM free))
    RETURNING seq
), finished AS MATERIALIZED (
    SELECT seq FROM envelopes
     UNION ALL
    SELECT seq FROM candidate AS c WHERE NOT EXISTS (SELECT FROM outbox.envelope AS e WHERE e.seq = c.seq)
), deliveries AS (
    DELETE FROM outbox.delivery WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
)
SELECT seq, topic, key, f.seq IS NOT NULL
  FROM candidate AS c
  LEFT JOIN finished AS f USING (seq)
 ORDER BY topic, seq
