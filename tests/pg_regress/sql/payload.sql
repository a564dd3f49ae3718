-- payload: whatever jsonb PostgreSQL accepts comes out equal, through append and append_batch, as payload and in headers.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
-- 3 MB that compress well, and 3 MB that do not (and so are stored out of line).
CREATE FUNCTION pg_temp.noise(bytes integer) RETURNS text LANGUAGE sql AS
$$ SELECT left(string_agg(md5(n::text), '' ORDER BY n), bytes) FROM generate_series(1, bytes / 32 + 1) AS n $$;
CREATE TEMP TABLE body (name text, body jsonb);
INSERT INTO body VALUES
  ('empty object', '{}'), ('empty array', '[]'), ('empty string', '""'), ('null', 'null'), ('true', 'true'), ('zero', '0'), ('string', '"text"'),
  ('array of nothing', '[null, {}, [], ""]'), ('empty key', '{"": 1}'), ('nested', '{"a": [{"b": {"c": [1, [2, [3]]]}}], "d": null}'),
  ('looks like a message', '{"type": "e", "payload": 1, "id": "x", "unknown": null}'),
  ('1e400', '1e400'), ('-1e-400', '[-1e-400]'), ('100 digits', to_jsonb(repeat('1234567890', 10)::numeric)),
  ('100 digits after the point', to_jsonb(('0.' || repeat('1234567890', 10))::numeric)), ('trailing zeros', '[1.10, 1.1, 100, 1e2, -0.0]'),
  ('largest integers', '[9223372036854775807, 9223372036854775808, -9223372036854775809, 9007199254740993]'),
  ('unicode', E'{"\u00e4\u4e2d\U0001f600": "\u200f\ufeff\ufffe\u0301", "a\u0301": "\u00e1"}'),
  ('escapes', '"\" \\ \/ \b \f \n \r \t \u0001 \u007f \ud83d\ude00 \\u0000"'),
  ('arrays 5000 deep', (repeat('[', 5000) || repeat(']', 5000))::jsonb),
  ('objects 5000 deep', (repeat('{"k": ', 5000) || '1' || repeat('}', 5000))::jsonb),
  ('10000 elements', (SELECT jsonb_agg(n) FROM generate_series(1, 10000) AS n)),
  ('10000 keys', (SELECT jsonb_object_agg(n, n) FROM generate_series(1, 10000) AS n)),
  ('3 MB compressible', to_jsonb(repeat('x', 3000000))), ('3 MB noise', to_jsonb(pg_temp.noise(3000000))),
  ('3 MB in an object', jsonb_build_object('a', pg_temp.noise(3000000), 'b', 1));
-- How they lie in this table is how some of them are passed: as they are, compressed, out of line.
SELECT count(*) FILTER (WHERE pg_column_size(body) < octet_length(body::text) / 10) > 0 AS compressed,
       pg_relation_size(reltoastrelid) > 6000000 AS out_of_line
  FROM body, pg_class WHERE pg_class.oid = 'body'::regclass GROUP BY reltoastrelid;

SELECT count(outbox.append('one', name, body, headers => jsonb_build_object('h', body))) FROM body;
SELECT count(*) FROM outbox.append_batch('batch', (SELECT jsonb_agg(jsonb_build_object('type', name, 'payload', body,
       'headers', jsonb_build_object('h', body))) FROM body));
-- The claims hand out what is in the table no more.
CREATE TEMP TABLE claimed AS SELECT topic, type, payload, headers FROM outbox.claim('worker', batch_size => 500);
SELECT name, c.topic, c.payload = b.body AND jsonb_typeof(c.payload) = jsonb_typeof(b.body) AS equal,
       c.payload::text = b.body::text AS as_text,
       c.headers = jsonb_build_object('h', b.body) AND c.headers::text = jsonb_build_object('h', b.body)::text AS headers,
       m.payload = b.body AND m.payload::text = b.body::text AND m.headers = c.headers AS view
  FROM body AS b LEFT JOIN claimed AS c ON c.type = b.name
  LEFT JOIN outbox.message AS m ON (m.topic, m.event_type) = (c.topic, b.name)
 ORDER BY name COLLATE "C", c.topic;

-- A stored message does not lean on the table its payload came from.
TRUNCATE outbox.envelope, outbox.delivery, claimed;
SELECT count(outbox.append('one', name, body)) FROM body WHERE name LIKE '3 MB%';
DROP TABLE body;
INSERT INTO claimed SELECT topic, type, payload, headers FROM outbox.claim('worker');
SELECT type, payload = CASE type WHEN '3 MB compressible' THEN to_jsonb(repeat('x', 3000000))
       WHEN '3 MB noise' THEN to_jsonb(pg_temp.noise(3000000))
       ELSE jsonb_build_object('a', pg_temp.noise(3000000), 'b', 1) END AS equal
  FROM claimed ORDER BY type;

-- Nor what was claimed on the stored message: in a table of whole rows, in a cursor that outlives its transaction.
UPDATE outbox.delivery SET leased_until = clock_timestamp();
CREATE TEMP TABLE claimed_row AS SELECT outbox.claim('worker') AS c;
UPDATE outbox.delivery SET leased_until = clock_timestamp();
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT type, payload FROM outbox.claim('worker');
COMMIT;
TRUNCATE outbox.envelope, outbox.delivery, claimed;
SELECT (c).type, octet_length((c).payload::text) FROM claimed_row ORDER BY 1;
DO $$
DECLARE
  held refcursor := 'held';
  message record;
BEGIN
  FOR n IN 1 .. 3 LOOP
    FETCH held INTO message;
    INSERT INTO claimed (type, payload) VALUES (message.type, message.payload);
  END LOOP;
END $$;
SELECT claimed.type, claimed.payload = (c).payload AS equal FROM claimed JOIN claimed_row ON (c).type = claimed.type ORDER BY 1;

-- What cannot be sent is refused: the limit holds for the text as well, also where that is not printed to be measured.
TRUNCATE outbox.envelope, outbox.delivery;
CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  detail text;
BEGIN
  EXECUTE statement;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN SQLSTATE || ' ' || SQLERRM || ': ' || detail;
END $$;
CREATE TEMP TABLE numbers AS SELECT n, jsonb_agg('1e131071'::jsonb) AS body FROM unnest('{1,56,100,127,128,8300}'::integer[]) AS n, generate_series(1, n)
 GROUP BY n;
SELECT n, pg_column_size(body) AS bytes, pg_temp.try(format($$SELECT outbox.append('size', 'e', body) FROM numbers WHERE n = %s$$, n)) AS append,
       pg_temp.try(format($$SELECT outbox.append_batch('size', jsonb_build_array(jsonb_build_object('type', 'e', 'payload', body)))
                              FROM numbers WHERE n = %s$$, n)) AS append_batch,
       pg_temp.try(format($$SELECT outbox.append('size', 'e', '1', headers => jsonb_build_object('h', body)) FROM numbers WHERE n = %s$$, n)) AS headers
  FROM numbers ORDER BY n;
SELECT topic, count(*), max(octet_length(payload::text)) AS payload, max(octet_length(headers::text)) AS headers
  FROM outbox.claim('worker', 'size') GROUP BY topic;
-- What is escaped is longer as text, and so are words. 1,024 bytes are allowed, 1,025 are not.
BEGIN;
SET LOCAL outbox.max_payload_bytes = 1024;
SELECT body, pg_temp.try(format($$SELECT outbox.append('size', 'e', (SELECT jsonb_agg(%L::jsonb) FROM generate_series(1, %s)))$$, body, n))
  FROM (VALUES ('"\u0001"', 102), ('"\u0001"', 103), ('"\n\n"', 128), ('"\n\n"', 129), ('"\\\""', 128), ('"\\\""', 129),
               ('false', 146), ('false', 147), ('0.0000000001', 73), ('0.0000000001', 74)) AS v (body, n);
-- Together they must be printable as one row, quoted once more, in another encoding.
SET LOCAL outbox.max_payload_bytes = 268435455;
SELECT p, h, pg_temp.try(format($$SELECT outbox.append('size', 'e', (SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, %s)),
       headers => (SELECT jsonb_build_object('h', jsonb_agg('1e131071'::jsonb)) FROM generate_series(1, %s)))$$, p, h))
  FROM (VALUES (2047, 0), (2048, 0), (1000, 1000), (1048, 1000), (1000, 1048)) AS v (p, h);
ROLLBACK;
