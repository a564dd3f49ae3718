-- outbox.traceparent: messages that come without a traceparent get that of the session.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
\set a 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
\set b 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00
CREATE FUNCTION pg_temp.headers() RETURNS TABLE (payload jsonb, headers jsonb) LANGUAGE sql AS $$ SELECT payload, headers FROM outbox.message ORDER BY payload $$;
SELECT count(outbox.append('t', 'e', '1'));
SHOW outbox.traceparent;
SET outbox.traceparent = :'a';
SHOW outbox.traceparent;
SELECT count(outbox.append('t', 'e', '2')), count(outbox.append('t', 'e', '3', headers => '{}')),
       count(outbox.append('t', 'e', '4', headers => '{"tracestate": "x=1", "n": 1e30, "Traceparent": "mine"}'));
-- One that is there stays, whatever it is; nothing else is touched.
SELECT count(outbox.append('t', 'e', '5', headers => jsonb_build_object('traceparent', :'b'))),
       count(outbox.append('t', 'e', '6', headers => '{"traceparent": null, "z": [1, {"a": "\u00fc"}]}'));
SELECT count(*) FROM outbox.append_batch('t', '[{"type": "e", "payload": 7}, {"type": "e", "payload": 8, "headers": {"a": "b"}},
  {"type": "e", "payload": 9, "headers": null}, {"type": "e", "payload": 10, "headers": {"traceparent": "mine"}}]');
-- For a transaction, a savepoint, a function.
BEGIN;
SET LOCAL outbox.traceparent = :'b';
SELECT count(outbox.append('t', 'e', '11'));
COMMIT;
SELECT count(outbox.append('t', 'e', '12'));
SET outbox.traceparent = '';
SELECT count(outbox.append('t', 'e', '13', headers => '{"a": "b"}'));
SELECT set_config('outbox.traceparent', :'b', false);
RESET outbox.traceparent;
SELECT count(outbox.append('t', 'e', '14'));
SELECT * FROM pg_temp.headers();
-- The worker gets it.
SELECT headers FROM outbox.claim('worker', batch_size => 2);

-- What is none is refused when it is set; bad headers are, too.
SET outbox.traceparent = 'x';
SET outbox.traceparent = '00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01';
SET outbox.traceparent = '00-00000000000000000000000000000000-00f067aa0ba902b7-01';
SET outbox.traceparent = ' ';
SELECT set_config('outbox.traceparent', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7', true);
\set VERBOSITY sqlstate
SET outbox.traceparent = 'x';
\set VERBOSITY default
SHOW outbox.traceparent;
SET outbox.traceparent = :'a';
SELECT outbox.append('t', 'e', '15', headers => '[]');
RESET outbox.traceparent;
SET outbox.traceparent = '01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more of a later version';
SELECT count(outbox.append('t', 'e', '16'));
SELECT headers FROM pg_temp.headers() WHERE payload = '16';
RESET outbox.traceparent;
