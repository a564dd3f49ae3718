-- $1 from and $2 to which time, $3 most markers. One row: how many were deleted, and the time at which the next call
-- goes on, if there may be more. None goes while its message is stored. %REFERENCES% is for foreign keys to m.
WITH finished AS MATERIALIZED (
    SELECT m.consumer, m.message_id, m.processed_at
      FROM outbox.processed AS m
     WHERE m.processed_at >= $1 AND m.processed_at < $2
       AND NOT EXISTS (SELECT FROM outbox.envelope AS e WHERE e.id = m.message_id)
       %REFERENCES%
     ORDER BY m.processed_at
     LIMIT $3
       FOR UPDATE SKIP LOCKED
), markers AS (
    DELETE FROM outbox.processed AS p USING finished AS f
     WHERE p.consumer = f.consumer AND p.message_id = f.message_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM markers), (SELECT max(processed_at) FROM finished HAVING count(*) = $3)
