-- $1 default retention in days, $2 most messages. One row per message deleted, oldest first: its number,
-- topic and key.
WITH finished AS MATERIALIZED (
    SELECT d.seq, d.topic, d.key
      FROM outbox.delivery AS d
      LEFT JOIN outbox.topic AS t ON t.topic = d.topic
     WHERE d.place = 'x'
       AND d.ended_at < clock_timestamp() - make_interval(secs => 86400.0 * coalesce(t.retention_days, $1))
     LIMIT $2
       FOR UPDATE OF d SKIP LOCKED
), deliveries AS (
    DELETE FROM outbox.delivery WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
), envelopes AS (
    DELETE FROM outbox.envelope WHERE seq = ANY (ARRAY (SELECT seq FROM finished))
)
SELECT seq, topic, key FROM finished ORDER BY seq
