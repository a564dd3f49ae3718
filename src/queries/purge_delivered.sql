-- $1 default retention in days, $2 most messages. One row per message deleted.
WITH retention AS (
    SELECT least($1, min(t.retention_days)) AS shortest FROM outbox.topic AS t
), finished AS MATERIALIZED (
    SELECT r.seq
      FROM outbox.receipt AS r
      JOIN outbox.envelope AS e ON e.seq = r.seq
      LEFT JOIN outbox.topic AS t ON t.topic = e.topic
     WHERE r.delivered_at < (SELECT clock_timestamp() - make_interval(secs => 86400.0 * shortest) FROM retention)
       AND r.delivered_at < clock_timestamp() - make_interval(secs => 86400.0 * coalesce(t.retention_days, $1))
     ORDER BY r.delivered_at
     LIMIT $2
       FOR UPDATE OF r SKIP LOCKED
), receipts AS (
    DELETE FROM outbox.receipt WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
)
DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
RETURNING 1
