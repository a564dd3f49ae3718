-- append_batch: ids in input order, all or none, duplicates, JSON nulls, times, the largest batch.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Every member; the order of the members does not matter.
SELECT append_batch AS id FROM outbox.append_batch(topic => 'batch', messages => '[
  {"type": "e.v1", "payload": {"n": 1}, "id": "00000000-0000-4000-8000-000000000009"},
  {"headers": {"h": "1"}, "key": "k", "available_at": "2000-01-01T00:00:00Z", "payload": {"n": 2},
   "type": "e.v2", "id": "00000000-0000-4000-8000-000000000001"}]') WITH ORDINALITY AS b (append_batch, place) ORDER BY place;
SELECT id, topic, event_type, payload, key, headers, state FROM outbox.message ORDER BY payload;
TRUNCATE outbox.envelope, outbox.delivery;

-- Ids in input order, whether given or made (version 7), and arrival in the same order.
CREATE TEMP TABLE answer AS
SELECT id, place FROM outbox.append_batch('batch', '[
  {"type": "e", "payload": 1},
  {"type": "e", "payload": 2, "id": "00000000-0000-4000-8000-000000000009"},
  {"type": "e", "payload": 3},
  {"type": "e", "payload": 4, "id": "00000000-0000-4000-8000-000000000001"}]') WITH ORDINALITY AS b (id, place);
SELECT place, m.payload, CASE WHEN m.payload IN ('2', '4') THEN m.id::text ELSE substr(m.id::text, 15, 1) END AS id
  FROM answer LEFT JOIN outbox.message AS m USING (id) ORDER BY place;
SELECT payload FROM outbox.claim('worker');
TRUNCATE outbox.envelope, outbox.delivery;
DROP TABLE answer;

-- JSON null means absent, but for payload, which may be null.
SELECT count(*) FROM outbox.append_batch('batch',
  '[{"type": "e", "payload": null, "id": null, "available_at": null, "key": null, "headers": null}]');
SELECT payload, payload IS NULL AS absent, key, headers, state FROM outbox.message;
TRUNCATE outbox.envelope, outbox.delivery;

-- An empty array is a batch of none.
SELECT count(*) FROM outbox.append_batch('batch', '[]');
SELECT count(*) FROM outbox.message;

-- Of an id that is there already, or twice in the batch, the first is stored and the same id comes back.
SELECT outbox.append('other', 'e', '1', '00000000-0000-4000-8000-000000000001');
SELECT outbox.append_batch('batch', '[
  {"type": "e", "payload": 2, "id": "00000000-0000-4000-8000-000000000001"},
  {"type": "e", "payload": 3, "id": "00000000-0000-4000-8000-000000000002"},
  {"type": "e", "payload": 4, "id": "00000000-0000-4000-8000-000000000002"}]');
SELECT right(id::text, 1) AS id, topic, payload FROM outbox.message ORDER BY id;
TRUNCATE outbox.envelope, outbox.delivery;

-- All or none: a bad last element takes the others along.
SELECT outbox.append_batch('batch', '[{"type": "e", "payload": 1}, {"type": "e", "payload": 2}, {"type": "", "payload": 3}]');
BEGIN;
SELECT count(*) FROM outbox.append_batch('batch', '[{"type": "e", "payload": 1}, {"type": "e", "payload": 2}]');
ROLLBACK;
SELECT count(*) FROM outbox.message;

-- available_at: ISO 8601 with an offset, to the microsecond, whatever DateStyle and TimeZone say.
SET DateStyle = 'German';
SET TimeZone = 'Asia/Tokyo';
SELECT count(*) FROM outbox.append_batch('batch', (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', at, 'available_at', at))
  FROM unnest('{2030-01-31T08:00:00Z, 2030-01-31T08:00:00.000001Z, 2030-01-31T08:00:00.999999+00:00, 2030-01-31T10:30:00+02:30,
                2030-01-31T03:00:00-05, 2030-01-31T08:00Z, 2030-01-31T03:00:00.5-05:00, 1970-01-01T00:00:00Z}'::text[]) AS t (at)));
SELECT payload, available_at = (payload #>> '{}')::timestamptz AS equal, state FROM outbox.message ORDER BY payload::text COLLATE "C";
-- What PostgreSQL itself makes of a timestamptz in JSON is such a time.
BEGIN;
SELECT count(*) FROM outbox.append_batch('now', jsonb_build_array(
  jsonb_build_object('type', 'e', 'payload', 1, 'available_at', now() + interval '1 day')));
SELECT available_at = now() + interval '1 day' AS equal, state FROM outbox.message WHERE topic = 'now';
COMMIT;
RESET DateStyle;
RESET TimeZone;
TRUNCATE outbox.envelope, outbox.delivery;
-- The first time that PostgreSQL can print, and the last of four digits.
SELECT count(*) FROM outbox.append_batch('batch', (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', at, 'available_at', at))
  FROM unnest('{-004713-11-24T00:00:00Z, 9999-12-31T23:59:59.999999Z}'::text[]) AS t (at)));
SELECT payload, available_at AT TIME ZONE 'UTC' AS available_at, state FROM outbox.message ORDER BY payload::text COLLATE "C";
TRUNCATE outbox.envelope, outbox.delivery;

-- The largest batch, in order.
CREATE TEMP TABLE answer AS
SELECT id, place FROM outbox.append_batch('batch', (SELECT jsonb_agg(jsonb_build_object('type', 'e', 'payload', n) ORDER BY n)
  FROM generate_series(1, 10000) AS n)) WITH ORDINALITY AS b (id, place);
SELECT count(DISTINCT id) AS ids, bool_and(payload::int = place) AS in_order FROM answer JOIN outbox.message USING (id);
CREATE TEMP TABLE claimed AS
SELECT call, payload::int AS n FROM generate_series(1, 6) AS call, outbox.claim('worker' || call, batch_size => 500);
SELECT call, count(*), min(n), max(n) FROM claimed GROUP BY call ORDER BY call;

-- In the select list, once per row.
TRUNCATE outbox.envelope, outbox.delivery;
SELECT n, count(id) FROM (SELECT n, outbox.append_batch('topic ' || n, '[{"type": "e", "payload": 1}, {"type": "e", "payload": 2}]') AS id
  FROM generate_series(1, 2) AS n) AS s GROUP BY n ORDER BY n;
SELECT topic, count(*) FROM outbox.message GROUP BY topic ORDER BY topic;
