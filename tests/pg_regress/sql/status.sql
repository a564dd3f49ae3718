-- status, read_status: health checks. What depends on the server, see tests/cluster/test_status.py.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT name, ok IS NOT NULL AS known, detail <> '' AS told FROM outbox.status;
SELECT name, ok FROM outbox.status WHERE name NOT IN ('preload', 'worker', 'xmin horizon', 'last purge', 'dead tuples');

-- The oldest ready message is old, unless its topic is paused.
SELECT count(outbox.append(topic, 'e', '1')) FROM unnest('{young,old}'::text[]) AS topic;
SELECT ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name = 'oldest ready';
UPDATE outbox.envelope SET occurred_at = occurred_at - interval '301 s' WHERE topic = 'old';
SELECT ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name = 'oldest ready';
SELECT outbox.pause('old'), outbox.pause('empty');
SELECT name, ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name IN ('oldest ready', 'paused');
SELECT outbox.resume('old'), outbox.resume('empty');
SELECT count(outbox.complete(token)) FROM outbox.claim('worker');
SELECT name, ok, detail FROM outbox.status WHERE name IN ('oldest ready', 'paused');

-- A purge that found nothing left.
SELECT outbox.purge();
SELECT ok, regexp_replace(detail, '\d+ s', '…') FROM outbox.status WHERE name = 'last purge';

-- The library is of another version than the extension.
BEGIN;
UPDATE pg_extension SET extversion = '0.0.0' WHERE extname = 'outbox';
ALTER FUNCTION outbox.append COST 1; -- as an update does, changes a function
SELECT name, ok, regexp_replace(detail, 'library [0-9.]+', 'library …') FROM outbox.status;
ROLLBACK;
-- It is of the same version, but something is missing.
BEGIN;
ALTER EXTENSION outbox DROP TABLE outbox.processed;
DROP TABLE outbox.processed;
SELECT name, ok, detail FROM outbox.status;
\set VERBOSITY sqlstate
SELECT outbox.append('t', 'e', '1');
\set VERBOSITY default
ROLLBACK;
-- In a read-only transaction, too.
BEGIN READ ONLY;
SELECT count(*) FROM outbox.status;
ROLLBACK;
