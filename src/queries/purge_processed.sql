-- $1 retention in days, $2 most markers. One row per marker deleted; none while its message is stored.
WITH finished AS MATERIALIZED (
    SELECT p.consumer, p.message_id
      FROM outbox.processed AS p
     WHERE p.processed_at < (SELECT clock_timestamp() - make_interval(secs => 86400.0 * $1))
       AND NOT EXISTS (SELECT FROM outbox.envelope AS e WHERE e.id = p.message_id)
     ORDER BY p.processed_at
     LIMIT $2
       FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox.processed AS p USING finished AS f
 WHERE p.consumer = f.consumer AND p.message_id = f.message_id
RETURNING 1
