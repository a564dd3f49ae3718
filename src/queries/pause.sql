-- $1 topic. A row if it was not paused.
INSERT INTO outbox.topic AS t (topic, paused) VALUES ($1, true)
    ON CONFLICT (topic) DO UPDATE SET paused = true WHERE NOT t.paused
RETURNING 1
