-- $1 default retention in days. One row: the shortest retention of any topic, in days.
SELECT least($1, min(retention_days)) FROM outbox.topic
