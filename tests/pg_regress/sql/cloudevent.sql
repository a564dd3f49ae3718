-- cloudevent: a stored message as CloudEvents 1.0.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
SELECT count(outbox.append('orders', 'evt.orders.placed.v1', '{"order": 1}', pg_temp.id(1), key => 'customer-7',
                           headers => '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b", "other": "not shown"}'));
UPDATE outbox.envelope SET occurred_at = '2026-01-31 08:00:00.123456+01';
SET timezone = 'Asia/Kathmandu';
SELECT jsonb_pretty(outbox.cloudevent(id => pg_temp.id(1)));
RESET timezone;
-- Whatever the message has been through.
SELECT outbox.complete(token) FROM outbox.claim('worker');
SELECT outbox.cloudevent(pg_temp.id(1)) ->> 'id';
-- The least it can be.
SELECT count(outbox.append('t', 'e', 'null', pg_temp.id(2)));
SELECT outbox.cloudevent(pg_temp.id(2)) - 'time' - 'source';
SELECT outbox.cloudevent(pg_temp.id(2)) ->> 'time' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$' AS rfc3339,
       (outbox.cloudevent(pg_temp.id(2)) ->> 'time')::timestamptz = created_at AS same FROM outbox.message WHERE id = pg_temp.id(2);
-- Any payload as it is: scalars, a deep one, a large one, numbers beyond all others.
SELECT n, count(outbox.append('t', 'e', payload, pg_temp.id(10 + n)))
  FROM (VALUES (1, '"text"'::jsonb), (2, '1e400'), (3, 'true'), (4, '[]'), (5, '{}'), (6, '[[1]]'), (7, '{"data": {"id": 1}}'),
               (8, (repeat('[', 3000) || repeat(']', 3000))::jsonb), (9, to_jsonb(repeat('x', 1000000)))) AS v (n, payload) GROUP BY n ORDER BY n;
SELECT count(*), bool_and(outbox.cloudevent(id) -> 'data' = payload) AS equal FROM outbox.message WHERE id > pg_temp.id(10);
-- Names that need care: the source is a URI path.
SELECT count(outbox.append('a/b c%ü', E'"type"\\', '1', pg_temp.id(3), key => '{"k": 1}'));
SELECT regexp_replace(outbox.cloudevent(pg_temp.id(3)) ->> 'source', '^/[^/]+', '/database') AS source, outbox.cloudevent(pg_temp.id(3)) - 'source' - 'time' AS rest;
-- A media type of its own; headers that are no text are no attributes.
SELECT count(outbox.append('t', 'e', '1', pg_temp.id(4), headers => '{"content-type": "application/cbor", "traceparent": 1, "tracestate": {"a": 1}}'));
SELECT outbox.cloudevent(pg_temp.id(4)) - 'source' - 'time';
SELECT count(outbox.append('t', 'e', '1', pg_temp.id(5), headers => '{"content-type": "", "traceparent": null}'));
SELECT outbox.cloudevent(pg_temp.id(5)) - 'source' - 'time';
-- Not stored, or not yet, or no more.
SELECT outbox.cloudevent(pg_temp.id(99)) IS NULL AS none;
SELECT outbox.cloudevent(NULL);
SELECT outbox.cloudevent('00000000-0000-0000-0000-000000000000');
BEGIN READ ONLY;
SELECT outbox.cloudevent(pg_temp.id(2)) ->> 'id';
ROLLBACK;
