-- errors: bad input is an error with the SQLSTATE of its kind, a stale token is not, and neither changes anything.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;

-- Runs a statement: ok, or SQLSTATE and message.
CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  message text;
BEGIN
  EXECUTE statement;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
  RETURN SQLSTATE || ' ' || message;
END $$;
-- All that is stored, as one value.
CREATE FUNCTION pg_temp.stored() RETURNS text LANGUAGE sql AS $$
  SELECT md5(concat((SELECT array_agg(e ORDER BY seq) FROM outbox.envelope AS e),
                    (SELECT array_agg(d ORDER BY seq) FROM outbox.delivery AS d),
                    (SELECT array_agg(r ORDER BY first) FROM outbox.receipt AS r),
                    (SELECT array_agg(p ORDER BY p) FROM outbox.processed AS p)))
$$;
-- One message each: delivered, leased twice (so with a stale token), ready.
SELECT count(outbox.append('errors', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset delivered_
SELECT outbox.complete(:'delivered_token');
SELECT token FROM outbox.claim('worker', batch_size => 1) \gset stale_
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE leased_until IS NOT NULL;
SELECT token FROM outbox.claim('worker', batch_size => 1, lease_seconds => 43200) \gset current_
SELECT pg_temp.stored() AS stored \gset

-- In full: message, detail and hint.
SELECT outbox.append(NULL, 'e', '1');
SELECT outbox.append('', 'e', '1');
SELECT outbox.append(E'a\tb', 'e', '1');
SELECT outbox.append(repeat('x', 300), 'e', '1');
SELECT outbox.append('t', 'e', '1', '00000000-0000-0000-0000-000000000000');
SELECT outbox.append('t', 'e', '1', available_at => 'infinity');
SELECT outbox.append('t', 'e', '1', headers => '["secret"]');
SELECT outbox.append_batch('t', '{"type": "e", "payload": "secret"}');
SELECT outbox.append_batch('t', '["secret"]');
SELECT outbox.append_batch('t', '[{"type": "e", "payload": "secret"}, {"type": "e", "payload": "secret", "kee": "k"}]');
SELECT outbox.append_batch('t', '[{"type": "e", "payload": "secret", "id": "1234"}]');
SELECT outbox.append_batch('t', '[{"type": "e", "payload": "secret", "available_at": "tomorrow"}]');
SELECT outbox.append_batch('t', jsonb_agg(n)) FROM generate_series(1, 10001) AS n;
SET outbox.max_payload_bytes = 1024;
SELECT outbox.append('t', 'e', to_jsonb(repeat('secret', 1000)));
SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('type', 'e', 'payload', repeat('secret', 1000))));
RESET outbox.max_payload_bytes;
SELECT * FROM outbox.claim('worker', batch_size => 501);
SELECT outbox.complete_batch(ARRAY[NULL]::uuid[]);
SELECT outbox.complete_batch(array_fill(gen_random_uuid(), '{2,2}'));
SELECT outbox.complete_batch(array_fill(gen_random_uuid(), '{10001}'));
SELECT outbox.purge(0);
BEGIN READ ONLY;
SELECT outbox.append('t', 'e', '1');
ROLLBACK;

-- NULL where none is allowed.
SELECT statement, pg_temp.try(statement) FROM unnest(ARRAY[
  $$SELECT outbox.append(NULL, 'e', '1')$$,
  $$SELECT outbox.append('t', NULL, '1')$$,
  $$SELECT outbox.append('t', 'e', NULL)$$,
  $$SELECT outbox.append_batch(NULL, '[]')$$,
  $$SELECT outbox.append_batch('t', NULL)$$,
  $$SELECT outbox.append_batch('t', '[null]')$$,
  $$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1}, null]')$$,
  $$SELECT outbox.append_batch('t', '[{"payload": 1}]')$$,
  $$SELECT outbox.append_batch('t', '[{"payload": 1, "type": null}]')$$,
  $$SELECT outbox.append_batch('t', '[{"type": "e"}]')$$,
  $$SELECT outbox.append_batch('t', '[{}]')$$,
  $$SELECT * FROM outbox.claim(NULL)$$,
  $$SELECT * FROM outbox.claim('w', wait_seconds => NULL)$$,
  $$CALL outbox.wait('t', NULL)$$,
  $$SELECT outbox.complete(NULL)$$,
  $$SELECT * FROM outbox.complete_batch(NULL)$$,
  $$SELECT * FROM outbox.complete_batch('{NULL}')$$,
  $$SELECT * FROM outbox.complete_batch('{00000000-0000-4000-8000-000000000001,NULL}')$$,
  $$SELECT outbox.fail(NULL)$$,
  $$SELECT outbox.fail(NULL, 'error', 'infinity')$$,
  $$SELECT outbox.abandon(NULL)$$,
  $$SELECT outbox.extend(NULL)$$,
  $$SELECT outbox.release(NULL)$$,
  $$SELECT outbox.consume_once(NULL, '00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.consume_once('c', NULL)$$,
  $$SELECT outbox.retry_dead(NULL)$$,
  $$SELECT outbox.redrive(NULL)$$,
  $$SELECT outbox.redrive('t', dry_run => NULL)$$,
  $$SELECT outbox.discard(NULL)$$,
  $$SELECT outbox.discard('t', dry_run => NULL)$$,
  $$SELECT outbox.pause(NULL)$$,
  $$SELECT outbox.resume(NULL)$$,
  $$SELECT outbox.set_topic(NULL, '{}')$$,
  $$SELECT outbox.set_topic('t', NULL)$$,
  $$SELECT outbox.purge(NULL)$$]) AS statement;
-- NULL where it means: the default.
BEGIN;
SELECT statement, pg_temp.try(statement) FROM unnest(ARRAY[
  $$SELECT outbox.append('t', 'e', 'null', NULL, NULL, NULL, NULL)$$,
  $$SELECT * FROM outbox.claim('w', NULL, NULL, NULL)$$,
  $$SELECT outbox.fail('00000000-0000-4000-8000-000000000001', NULL, NULL)$$,
  $$SELECT outbox.abandon('00000000-0000-4000-8000-000000000001', NULL)$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001', NULL)$$]) AS statement;
ROLLBACK;

-- Names, the same rules for all of them; 255 bytes are allowed, 256 are not.
CREATE TEMP TABLE name_of AS SELECT * FROM (VALUES
  ('topic', $$SELECT outbox.append(%L, 'e', '1')$$),
  ('type', $$SELECT outbox.append('t', %L, '1')$$),
  ('key', $$SELECT outbox.append('t', 'e', '1', key => %L)$$),
  ('topic of batch', $$SELECT outbox.append_batch(%L, '[{"type": "e", "payload": 1}]')$$),
  ('topic of empty batch', $$SELECT outbox.append_batch(%L, '[]')$$),
  ('type in batch', $$SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('payload', 1, 'type', %L::text)))$$),
  ('key in batch', $$SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('payload', 1, 'type', 'e', 'key', %L::text)))$$),
  ('owner', $$SELECT * FROM outbox.claim(%L)$$),
  ('topic of claim', $$SELECT * FROM outbox.claim('w', %L)$$),
  ('topic of redrive', $$SELECT outbox.redrive(%L)$$),
  ('type of redrive', $$SELECT outbox.redrive('t', %L)$$),
  ('topic of discard', $$SELECT outbox.discard(%L)$$),
  ('type of discard', $$SELECT outbox.discard('t', %L)$$),
  ('topic of pause', $$SELECT outbox.pause(%L)$$),
  ('topic of resume', $$SELECT outbox.resume(%L)$$),
  ('topic of set_topic', $$SELECT outbox.set_topic(%L, '{"batch_size": 1}')$$),
  ('consumer', $$SELECT outbox.consume_once(%L, '00000000-0000-4000-8000-000000000001')$$)) AS v (argument, statement);
BEGIN;
SELECT n, value, regexp_replace(pg_temp.try(format(statement, name)), '(message 1: )?(topic|type|key|owner|consumer) ', '… ') AS result,
       count(*), string_agg(argument, ', ' ORDER BY argument COLLATE "C") FILTER (WHERE n = 1) AS arguments
  FROM name_of, (VALUES
  (1, 'empty', ''), (2, 'blank', '  '), (3, 'tab', E'\t'), (4, 'no-break space', U&'\00A0'), (5, 'ideographic space', U&'\3000'),
  (6, 'line feed inside', E'a\nb'), (7, 'U+0001', E'a\u0001'), (8, 'DEL', E'a\u007f'),
  (9, 'U+0085', E'a\u0085b'), (10, 'U+0085 alone', E'\u0085'),
  (11, 'U+009F', E'\u009f'), (12, '256 bytes', repeat('x', 256)), (13, '256 bytes in 128 characters', repeat(U&'\00E4', 128)),
  (14, '1 MB', repeat('x', 1000000)),
  (20, '255 bytes', repeat('x', 255)), (21, '255 bytes in 85 characters', repeat(U&'\4E2D', 85)), (22, 'spaces around', ' a b '),
  (23, 'quotes and such', $$'"\%s$1;--$$), (24, 'U+00A1', U&'\00A1'), (25, 'emoji', U&'\+01F600')) AS v (n, value, name)
 GROUP BY n, value, result ORDER BY n;
ROLLBACK;

-- Ranges, just inside and just outside.
BEGIN;
SELECT statement, pg_temp.try(statement) FROM unnest(ARRAY[
  $$SELECT * FROM outbox.claim('w', batch_size => -2147483648)$$,
  $$SELECT * FROM outbox.claim('w', batch_size => 0)$$,
  $$SELECT * FROM outbox.claim('w', batch_size => 1)$$,
  $$SELECT * FROM outbox.claim('w', batch_size => 500)$$,
  $$SELECT * FROM outbox.claim('w', batch_size => 501)$$,
  $$SELECT * FROM outbox.claim('w', lease_seconds => 0)$$,
  $$SELECT * FROM outbox.claim('w', lease_seconds => 1)$$,
  $$SELECT * FROM outbox.claim('w', lease_seconds => 43200)$$,
  $$SELECT * FROM outbox.claim('w', lease_seconds => 43201)$$,
  $$SELECT * FROM outbox.claim('w', wait_seconds => -1)$$,
  $$SELECT * FROM outbox.claim('w', wait_seconds => 0)$$,
  $$SELECT * FROM outbox.claim('w', wait_seconds => 61)$$,
  $$CALL outbox.wait('t', -1)$$,
  $$CALL outbox.wait('t', 0)$$,
  $$CALL outbox.wait('t', 61)$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001', 0)$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001', 1)$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001', 43200)$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001', 43201)$$,
  $$SELECT outbox.redrive('t', max_messages => 0)$$,
  $$SELECT outbox.redrive('t', max_messages => 1)$$,
  $$SELECT outbox.discard('t', max_messages => 0)$$,
  $$SELECT outbox.discard('t', max_messages => 1)$$,
  $$SELECT outbox.purge(-1)$$,
  $$SELECT outbox.purge(0)$$,
  $$SELECT outbox.purge(1)$$,
  $$SELECT outbox.purge(2147483647)$$]) AS statement;
-- 60 seconds may be asked for: with a message there it takes none.
SELECT outbox.append('errors wait', 'e', '1') IS NOT NULL AS appended;
SELECT pg_temp.try($$SELECT * FROM outbox.claim('w', 'errors wait', wait_seconds => 60)$$);
ROLLBACK;

-- The nil uuid is no id; times are finite.
BEGIN;
SELECT statement, pg_temp.try(statement) FROM unnest(ARRAY[
  $$SELECT outbox.append('t', 'e', '1', '00000000-0000-0000-0000-000000000000')$$,
  $$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1, "id": "00000000-0000-0000-0000-000000000000"}]')$$,
  $$SELECT outbox.consume_once('c', '00000000-0000-0000-0000-000000000000')$$,
  $$SELECT outbox.retry_dead('00000000-0000-0000-0000-000000000000')$$,
  $$SELECT outbox.append('t', 'e', '1', 'ffffffff-ffff-ffff-ffff-ffffffffffff')$$,
  $$SELECT outbox.append('t', 'e', '1', available_at => 'infinity')$$,
  $$SELECT outbox.append('t', 'e', '1', available_at => '-infinity')$$,
  $$SELECT outbox.discard('t', before => 'infinity')$$,
  $$SELECT outbox.discard('t', before => '-infinity')$$,
  $$SELECT outbox.fail('00000000-0000-4000-8000-000000000001', 'e', 'infinity')$$,
  $$SELECT outbox.fail('00000000-0000-4000-8000-000000000001', 'e', '-infinity')$$]) AS statement;
ROLLBACK;

-- Headers are an object; append_batch takes an array of objects with members of the right types and no others.
SELECT headers, pg_temp.try(format($$SELECT outbox.append('t', 'e', '1', headers => %L)$$, headers)) AS append,
       pg_temp.try(format($$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1, "headers": %s}]')$$, headers)) AS append_batch
  FROM unnest(ARRAY['[]', '["a"]', '"a"', '1', 'true']) AS headers;
SELECT pg_temp.try($$SELECT outbox.append('t', 'e', '1', headers => 'null')$$) AS json_null_is_no_object;
SELECT messages, pg_temp.try(format('SELECT outbox.append_batch(%L, %L)', 't', messages)) FROM unnest(ARRAY[
  '{}', '1', '"secret"', 'null', 'true', '[1]', '["secret"]', '[[]]', '[[{"type": "e", "payload": 1}]]',
  '[{"type": 1, "payload": "secret"}]',
  '[{"type": ["e"], "payload": "secret"}]',
  '[{"type": "e", "payload": "secret", "key": 1}]',
  '[{"type": "e", "payload": "secret", "key": {"k": "v"}}]',
  '[{"type": "e", "payload": "secret", "id": 1}]',
  '[{"type": "e", "payload": "secret", "id": {"k": "v"}}]',
  '[{"type": "e", "payload": "secret", "available_at": 1}]',
  '[{"type": "e", "payload": "secret", "available_at": ["2030-01-31T08:00:00Z"]}]',
  '[{"type": "e", "payload": "secret", "topic": "t"}]',
  '[{"type": "e", "payload": "secret", "Type": "e"}]',
  '[{"type": "e", "payload": "secret", "": 1}]',
  '[{"type": "e", "payload": "secret", "unknown": null}]']) AS messages;
-- Times in it have an offset; nothing is guessed.
SELECT at, pg_temp.try(format($$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1, "available_at": "%s"}]')$$, at))
  FROM unnest(ARRAY[
  '', 'now', 'tomorrow', 'infinity', '-infinity', '2030-01-31', '08:00:00Z', '2030-01-31T08:00:00', '2030-01-31T08:00:00 UTC',
  '2030-01-31T08:00:00 Europe/Berlin', '2030-01-31 08:00:00', '31.01.2030 08:00:00+00', '2030-13-01T08:00:00Z', '2030-02-30T08:00:00Z', '2030-01-31T25:00:00Z',
  '2030-01-31T08:60:00Z', '1896076800', ' 2030-01-31T08:00:00Z', '2030-01-31T08:00:00Z ', '+300000-01-31T08:00:00Z',
  '-005000-01-01T00:00:00Z', '-004713-11-23T23:59:59.999999Z', '-004713-11-24T00:00:00+00:01', '+294277-01-01T00:00:00Z']) AS at;
-- An id in it is a uuid just as PostgreSQL reads one.
BEGIN;
SELECT id, left(pg_temp.try(format('SELECT %L::uuid', id)), 5) AS uuid,
       left(pg_temp.try(format($$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1, "id": "%s"}]')$$, id)), 5) AS append_batch
  FROM unnest(ARRAY[
  '', 'x', '00000000-0000-4000-8000-00000000000', '00000000-0000-4000-8000-0000000000001', '00000000-0000-4000-8000-00000000000g',
  'urn:uuid:00000000-0000-4000-8000-000000000001', '{00000000-0000-4000-8000-000000000001', ' 00000000-0000-4000-8000-000000000001',
  '00000000-0000-4000-8000-00000000000A', '{00000000-0000-4000-8000-000000000002}', '00000000000040008000000000000003',
  '0000-0000-0000-4000-8000-0000-0000-0004']) AS id;
ROLLBACK;

-- Too many, too large. The size is that of the uncompressed value; a batch is limited by its elements' sizes, not by their sum.
BEGIN;
SET LOCAL outbox.max_payload_bytes = 1024;
CREATE TEMP TABLE body ON COMMIT DROP AS SELECT n, to_jsonb(repeat('x', n - 12)) AS body FROM unnest('{1024,1025,100000}'::int[]) AS n;
SELECT n, pg_column_size(to_jsonb(body #>> '{}')) = n AS uncompressed, pg_column_size(body) < 2000 AS small_as_stored,
       pg_temp.try(format($$SELECT outbox.append('t', 'e', body) FROM body WHERE n = %s$$, n)) AS payload,
       pg_temp.try(format($$SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('type', 'e', 'payload', 1),
                          jsonb_build_object('type', 'e', 'payload', body))) FROM body WHERE n = %s$$, n)) AS in_batch
  FROM body ORDER BY n;
CREATE TEMP TABLE header ON COMMIT DROP AS
SELECT n, jsonb_build_object('h', repeat('x', n - 17)) AS header FROM unnest('{1024,1025}'::int[]) AS n;
SELECT n, pg_column_size(header) AS bytes,
       pg_temp.try(format($$SELECT outbox.append('t', 'e', '1', headers => header) FROM header WHERE n = %s$$, n)) AS headers,
       pg_temp.try(format($$SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('type', 'e', 'payload', 1, 'headers', header)))
                          FROM header WHERE n = %s$$, n)) AS in_batch
  FROM header ORDER BY n;
SELECT pg_temp.try($$SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('type', 'e', 'payload', repeat('x', 1000)),
                   jsonb_build_object('type', 'e', 'payload', repeat('x', 1000))))$$) AS sum_over_limit;
SELECT n, pg_temp.try(format($$SELECT outbox.append_batch('t', jsonb_agg('{"type": "e", "payload": 1}'::jsonb))
                                 FROM generate_series(1, %s)$$, n)) AS append_batch,
       pg_temp.try(format($$SELECT outbox.complete_batch(array_agg(gen_random_uuid())) FROM generate_series(1, %s)$$, n)) AS complete_batch
  FROM unnest('{10000,10001}'::int[]) AS n;
SELECT pg_temp.try($$SELECT outbox.complete_batch(array_fill(gen_random_uuid(), '{1,1}'))$$) AS two_dimensions,
       pg_temp.try($$SELECT outbox.complete_batch(array_fill(gen_random_uuid(), '{1,2,1}'))$$) AS three_dimensions,
       pg_temp.try($$SELECT outbox.complete_batch('{}')$$) AS empty, pg_temp.try($$SELECT outbox.append_batch('t', '[]')$$) AS empty_batch;
ROLLBACK;

-- A read-only transaction: each function refuses, with good arguments, with bad ones and with nothing to do. Reading is fine.
BEGIN READ ONLY;
SELECT statement, pg_temp.try(statement) FROM unnest(ARRAY[
  $$SELECT outbox.append('t', 'e', '1')$$,
  $$SELECT outbox.append_batch('t', '[{"type": "e", "payload": 1}]')$$,
  $$SELECT outbox.append_batch('t', '[]')$$,
  $$SELECT * FROM outbox.claim('w')$$,
  $$SELECT * FROM outbox.claim('w', 'no such topic')$$,
  $$SELECT outbox.complete('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.complete_batch('{00000000-0000-4000-8000-000000000001}')$$,
  $$SELECT outbox.complete_batch('{}')$$,
  $$SELECT outbox.fail('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.abandon('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.extend('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.release('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.consume_once('c', '00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.retry_dead('00000000-0000-4000-8000-000000000001')$$,
  $$SELECT outbox.redrive('t')$$,
  $$SELECT outbox.redrive('t', dry_run => true)$$,
  $$SELECT outbox.discard('t')$$,
  $$SELECT outbox.discard('t', dry_run => true)$$,
  $$SELECT outbox.pause('t')$$,
  $$SELECT outbox.resume('t')$$,
  $$SELECT outbox.set_topic('t', '{}')$$,
  $$SELECT outbox.grant_access('pg_monitor', 'monitor')$$,
  $$SELECT outbox.revoke_access('pg_monitor', 'monitor')$$,
  $$SELECT outbox.purge()$$,
  $$SELECT * FROM outbox.stats$$,
  $$SELECT * FROM outbox.status$$,
  $$SELECT * FROM outbox.message$$]) AS statement;
ROLLBACK;

-- All these errors have left nothing behind; the current lease has survived them.
SELECT pg_temp.stored() = :'stored' AS unchanged;
-- Stale, forged, repeated tokens: a result, and nothing changes.
SELECT name, outbox.complete(token), outbox.fail(token, 'e', now()), outbox.abandon(token, 'e'), outbox.extend(token, 1),
       outbox.release(token),
       (SELECT completed FROM outbox.complete_batch(ARRAY[token]))
  FROM (VALUES ('delivered', :'delivered_token'::uuid), ('stale', :'stale_token'), ('nil', '00000000-0000-0000-0000-000000000000'),
               ('random', '5e0c8ab5-0c9e-4d5c-8d2e-2f6f9a3b7c11'), ('version 8', '00000000-0001-8000-8000-000000000001'),
               ('max', 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
               ('largest of version 8', 'ffffffff-ffff-8fff-bfff-ffffffffffff')) AS v (name, token);
SELECT pg_temp.stored() = :'stored' AS unchanged;
SELECT outbox.complete(:'current_token');
SELECT pg_temp.stored() = :'stored' AS unchanged;

-- A database error that passes through keeps all its fields, also through two of our functions and what is between.
CREATE FUNCTION pg_temp.told(statement text) RETURNS TABLE (field text, told text) LANGUAGE plpgsql AS $$
DECLARE
  a text; b text; c text; d text; e text; f text; g text; h text; i text; j text;
BEGIN
  EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS a = RETURNED_SQLSTATE, b = MESSAGE_TEXT, c = PG_EXCEPTION_DETAIL, d = PG_EXCEPTION_HINT, e = SCHEMA_NAME,
    f = TABLE_NAME, g = COLUMN_NAME, h = CONSTRAINT_NAME, i = PG_DATATYPE_NAME, j = PG_EXCEPTION_CONTEXT;
  RETURN QUERY SELECT * FROM (VALUES ('state', a), ('message', b), ('detail', c), ('hint', d), ('schema', e), ('table', f), ('column', g),
    ('constraint', h), ('type', i), ('context', regexp_replace(j, '\s+|pg_temp_\d+\.', ' ', 'g'))) AS v (name, value) WHERE value <> '';
END $$;
CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.topic = 'nested' THEN
    PERFORM outbox.pause('inner');
  END IF;
  IF NEW.topic = 'inner' THEN
    RAISE EXCEPTION USING ERRCODE = 'XY123', MESSAGE = 'refused', DETAIL = 'by a trigger', HINT = 'none', SCHEMA = 's', TABLE = 't',
      COLUMN = 'c', CONSTRAINT = 'n', DATATYPE = 'd';
  END IF;
  RETURN NEW;
END $$;
BEGIN;
ALTER TABLE outbox.topic ADD CONSTRAINT topic_is_short CHECK (length(topic) < 20);
CREATE TRIGGER refuse BEFORE INSERT ON outbox.topic FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse();
SELECT * FROM pg_temp.told($$SELECT outbox.pause('a topic that is too long')$$);
SELECT * FROM pg_temp.told($$SELECT outbox.pause('inner')$$);
SELECT * FROM pg_temp.told($$SELECT outbox.pause('nested')$$);
-- Nothing of it clings to what comes next.
SELECT * FROM pg_temp.told($$SELECT outbox.pause(NULL)$$);
SELECT * FROM pg_temp.told($$SELECT outbox.pause('inner')$$) WHERE field IN ('state', 'table');
SELECT outbox.pause('fine');
ROLLBACK;
