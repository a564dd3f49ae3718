-- $1 topic, $2 a JSON object of overrides, checked; what it does not name stays. A row if it names any.
INSERT INTO outbox.topic AS t (
    topic, max_attempts, backoff_seconds, backoff_max_seconds, lease_seconds, batch_size, retention_days, block_on_dead)
SELECT $1,
       ($2 ->> 'max_attempts')::numeric,
       ($2 ->> 'backoff_seconds')::numeric,
       ($2 ->> 'backoff_max_seconds')::numeric,
       ($2 ->> 'lease_seconds')::numeric,
       ($2 ->> 'batch_size')::numeric,
       ($2 ->> 'retention_days')::numeric,
       ($2 ->> 'block_on_dead')::bool
 WHERE $2 <> '{}'
    ON CONFLICT (topic) DO UPDATE SET
       max_attempts = CASE WHEN $2 ? 'max_attempts' THEN excluded.max_attempts ELSE t.max_attempts END,
       backoff_seconds = CASE WHEN $2 ? 'backoff_seconds' THEN excluded.backoff_seconds ELSE t.backoff_seconds END,
       backoff_max_seconds =
           CASE WHEN $2 ? 'backoff_max_seconds' THEN excluded.backoff_max_seconds ELSE t.backoff_max_seconds END,
       lease_seconds = CASE WHEN $2 ? 'lease_seconds' THEN excluded.lease_seconds ELSE t.lease_seconds END,
       batch_size = CASE WHEN $2 ? 'batch_size' THEN excluded.batch_size ELSE t.batch_size END,
       retention_days = CASE WHEN $2 ? 'retention_days' THEN excluded.retention_days ELSE t.retention_days END,
       block_on_dead = CASE WHEN $2 ? 'block_on_dead' THEN excluded.block_on_dead ELSE t.block_on_dead END
RETURNING 1
