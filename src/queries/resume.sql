-- $1 topic. A row if it was paused.
UPDATE outbox.topic SET paused = false WHERE topic = $1 AND paused RETURNING 1
