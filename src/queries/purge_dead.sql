-- $1 default retention in days, $2 most messages. One row per message deleted.
WITH finished AS MATERIALIZED (
    SELECT d.seq
      FROM outbox.delivery AS d
      LEFT JOIN outbox.topic AS t ON t.topic = d.topic
     WHERE d.place = 'x'
       AND d.ended_at < clock_timestamp() - make_interval(secs => 86400.0 * coalesce(t.retention_days, $1))
     LIMIT $2
       FOR UPDATE OF d SKIP LOCKED
), deliveries AS (
    DELETE FROM outbox.delivery WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
)
DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
RETURNING 1
