-- message: every column of the view in each of the five states, deaths nobody has recorded, who may read it.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

-- One message in each state, of those that have several ways into it one for each way.
SELECT count(outbox.append('message', 'evt.' || n, to_jsonb(n), pg_temp.id(n), CASE n WHEN 8 THEN now() + interval '1 hour' END,
       'key ' || n, jsonb_build_object('h', n))) FROM generate_series(1, 9) AS n;
SELECT payload, outbox.complete(token) FROM outbox.claim('deliverer', batch_size => 1);
SELECT payload, outbox.abandon(token, 'abandoned') FROM outbox.claim('abandoner', batch_size => 1);
SELECT payload, outbox.fail(token, 'failed') FROM outbox.claim('failer', batch_size => 1);
SELECT payload FROM outbox.claim('holder', batch_size => 1);
SELECT payload, outbox.release(token) FROM outbox.claim('releaser', batch_size => 1);
SELECT payload, outbox.fail(token, 'failed, due again', '2000-01-01') FROM outbox.claim('failer', batch_size => 1);
SELECT payload FROM outbox.claim('crashed', batch_size => 2);
-- Times that do not change from run to run: what is over was in 2001, what is to come is in 2999.
UPDATE outbox.envelope SET occurred_at = '2000-01-01', available_at = CASE WHEN available_at IS NOT NULL THEN timestamptz '2999-01-03' END;
UPDATE outbox.receipt SET delivered_at = '2001-01-01';
UPDATE outbox.delivery SET leased_until = CASE WHEN lease_owner = 'holder' THEN timestamptz '2999-01-04'
                                           WHEN leased_until IS NOT NULL THEN '2001-01-05' END,
       ended_at = CASE WHEN ended_at IS NOT NULL THEN timestamptz '2001-01-02' END,
       available_at = CASE WHEN available_at > now() THEN timestamptz '2999-01-03' WHEN available_at IS NOT NULL THEN '2001-01-06' END;
\x on
SELECT * FROM outbox.message ORDER BY payload;
\x off

-- A lease that ran out: ready with attempts left, dead without, whoever looks; its end is the time of the death.
-- The limit is the topic's, else the setting of the session that looks.
SELECT payload, state, attempts, leased_until, lease_owner, dead_at, last_error FROM outbox.message WHERE payload = '5';
SET outbox.max_attempts = 1;
SELECT payload, state, attempts, leased_until, lease_owner, dead_at, last_error FROM outbox.message WHERE payload = '5';
INSERT INTO outbox.topic (topic, max_attempts) VALUES ('message', 3);
SELECT payload, state FROM outbox.message WHERE payload = '5';
UPDATE outbox.topic SET max_attempts = 1;
RESET outbox.max_attempts;
SELECT payload, state FROM outbox.message WHERE payload = '5';
-- Looking at it has recorded nothing: with the old limit it is ready again.
UPDATE outbox.topic SET max_attempts = NULL;
SELECT payload, state FROM outbox.message WHERE payload = '5';
UPDATE outbox.topic SET max_attempts = 1;
-- A claim on the topic records it, and shows the same; from then on no limit brings it back.
SELECT payload FROM outbox.claim('worker', 'message', batch_size => 1);
SELECT payload, state, attempts, leased_until, lease_owner, dead_at, last_error FROM outbox.message WHERE payload = '5';
UPDATE outbox.topic SET max_attempts = 50;
SELECT payload, state FROM outbox.message WHERE payload = '5';
TRUNCATE outbox.topic;

-- A message of a paused topic keeps its state.
INSERT INTO outbox.topic (topic, paused) VALUES ('message', true);
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
TRUNCATE outbox.topic;

-- In a session that has not loaded the library the limit is the built-in default, 8.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('message', 'e', to_jsonb(n))) FROM generate_series(7, 8) AS n;
SELECT count(*) FROM outbox.claim('worker');
UPDATE outbox.delivery SET leased_until = clock_timestamp(),
       attempts = (SELECT payload::int FROM outbox.envelope AS e WHERE e.seq = delivery.seq);
\c -
SELECT payload, state FROM outbox.message ORDER BY payload;
LOAD 'outbox';
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.purge();
SELECT payload, state FROM outbox.message ORDER BY payload;

-- It shows no token: not in any column of a leased message.
SELECT count(outbox.append('message', 'e', '{}'));
SELECT token FROM outbox.claim('worker', batch_size => 500) WHERE payload = '{}' \gset
SELECT state, position(:'token' IN m::text) AS token FROM outbox.message AS m WHERE payload = '{}';

-- It is not writable.
SELECT is_updatable, is_insertable_into FROM information_schema.views WHERE table_schema = 'outbox' AND table_name = 'message';

-- A reader needs the view or the columns, not the tables.
CREATE ROLE regress_outbox_reader;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_reader;
SET ROLE regress_outbox_reader;
SELECT count(*) FROM outbox.message;
RESET ROLE;
GRANT SELECT (topic, state) ON outbox.message TO regress_outbox_reader;
SET ROLE regress_outbox_reader;
SELECT topic, state FROM outbox.message WHERE state = 'dead';
SELECT payload FROM outbox.message;
SELECT count(*) FROM outbox.envelope;
RESET ROLE;
GRANT SELECT ON outbox.message TO regress_outbox_reader;
SET ROLE regress_outbox_reader;
SELECT payload, state FROM outbox.message WHERE state = 'dead';
RESET ROLE;
DROP OWNED BY regress_outbox_reader;
DROP ROLE regress_outbox_reader;
