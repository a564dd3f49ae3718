-- The SQL surface, in the order a message lives. src/api.rs implements each function under the same name.
--
-- One function per name. VOLATILE, PARALLEL UNSAFE, never STRICT: a NULL where none is allowed is an error (22004).
-- Functions that reach the tables directly need no rights on them. Those that run SQL are SECURITY DEFINER.

CREATE FUNCTION outbox.append (
    topic pg_catalog.text,
    type pg_catalog.text,
    payload pg_catalog.jsonb,
    id pg_catalog.uuid DEFAULT NULL,
    available_at pg_catalog.timestamptz DEFAULT NULL,
    key pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL
)
RETURNS pg_catalog.uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'append_wrapper';

COMMENT ON FUNCTION outbox.append IS
'Appends a message in the caller''s transaction and returns its id. An id that is still stored is a duplicate: '
'nothing is written, and the same id comes back. available_at in the future delays the message; key is its ordering '
'key, headers a JSON object. Errors: 22004, 22023, 2200H, 54000 (payload or headers too large, as jsonb or as text), '
'25006.';

CREATE FUNCTION outbox.append_batch (topic pg_catalog.text, messages pg_catalog.jsonb)
RETURNS SETOF pg_catalog.uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'append_batch_wrapper';

COMMENT ON FUNCTION outbox.append_batch IS
'Appends a JSON array of up to 10000 objects {type, payload, id?, available_at?, key?, headers?}, all or none, and '
'returns their ids in input order. available_at is ISO 8601 with an offset. Errors: 22004, 22023, 2200H, 22P02 '
'(malformed id), 54000, 25006.';

CREATE FUNCTION outbox.claim (
    owner pg_catalog.text,
    topic pg_catalog.text DEFAULT NULL,
    batch_size pg_catalog.int4 DEFAULT NULL,
    lease_seconds pg_catalog.int4 DEFAULT NULL,
    wait_seconds pg_catalog.int4 DEFAULT 0
)
RETURNS SETOF outbox.claimed
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'claim_wrapper';

COMMENT ON FUNCTION outbox.claim IS
'Leases up to batch_size (1-500) ready messages of topic, or of any topic, to owner for lease_seconds (1-43200), '
'oldest first. An answer needs the token of its row. With nothing ready, the call waits up to wait_seconds (0-60). '
'It never waits for another transaction. A message that the session''s client_encoding cannot show is failed instead '
'(last_error says why). Errors: 22004, 22023, 25006.';

CREATE PROCEDURE outbox.wait (topic pg_catalog.text DEFAULT NULL, wait_seconds pg_catalog.int4 DEFAULT 60)
LANGUAGE c
AS 'MODULE_PATHNAME', 'wait_wrapper';

COMMENT ON PROCEDURE outbox.wait IS
'Returns as soon as a claim on topic, or on any topic, would find something, or after wait_seconds (0-60). Called '
'outside a transaction block, it holds no snapshot while it waits, unlike outbox.claim(). Errors: 22004, 22023, '
'25006.';

CREATE FUNCTION outbox.complete (token pg_catalog.uuid)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'complete_wrapper';

COMMENT ON FUNCTION outbox.complete IS
'Records a message as delivered. True if token is its current lease, false (and nothing changes) if it is stale. '
'Errors: 22004, 25006.';

CREATE FUNCTION outbox.complete_batch (tokens pg_catalog.uuid[])
RETURNS TABLE (token pg_catalog.uuid, completed pg_catalog.bool)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'complete_batch_wrapper';

COMMENT ON FUNCTION outbox.complete_batch IS
'Does what outbox.complete() does, for up to 10000 tokens, answered in input order; a repeated token is true once. '
'Errors: 22004, 22023 (dimensions), 54000, 25006.';

CREATE FUNCTION outbox.fail (
    token pg_catalog.uuid,
    error pg_catalog.text DEFAULT NULL,
    retry_at pg_catalog.timestamptz DEFAULT NULL
)
RETURNS pg_catalog.text
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'fail_wrapper';

COMMENT ON FUNCTION outbox.fail IS
'Records that an attempt failed. Returns waiting, or dead after the last allowed attempt, or NULL for a stale token. '
'The next attempt is due at retry_at, or after outbox.backoff_seconds, doubled with every attempt. Errors: 22004, '
'22023, 25006.';

CREATE FUNCTION outbox.abandon (token pg_catalog.uuid, error pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'abandon_wrapper';

COMMENT ON FUNCTION outbox.abandon IS
'Gives a message up: it is dead now. False for a stale token. Errors: 22004, 25006.';

CREATE FUNCTION outbox.extend (token pg_catalog.uuid, lease_seconds pg_catalog.int4 DEFAULT NULL)
RETURNS pg_catalog.timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'extend_wrapper';

COMMENT ON FUNCTION outbox.extend IS
'Makes the lease end lease_seconds (1-43200) from now and returns that time, or NULL for a stale token. Errors: '
'22004, 22023, 25006.';

CREATE FUNCTION outbox.release (token pg_catalog.uuid)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'release_wrapper';

COMMENT ON FUNCTION outbox.release IS
'Gives a message back at once, its attempt uncounted. False for a stale token. Errors: 22004, 25006.';

CREATE FUNCTION outbox.consume_once (consumer pg_catalog.text, message_id pg_catalog.uuid)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'consume_once_wrapper';

COMMENT ON FUNCTION outbox.consume_once IS
'True exactly once per committed (consumer, message): apply the effect in the same transaction. It waits for a '
'transaction that is storing the same marker. Errors: 22004, 22023, 25006.';

CREATE FUNCTION outbox.retry_dead (id pg_catalog.uuid)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'retry_dead_wrapper';

COMMENT ON FUNCTION outbox.retry_dead IS
'Gives a dead message another life: ready, no attempts counted, its place in line kept. True if it was dead. Errors: '
'22004, 22023, 25006.';

CREATE FUNCTION outbox.redrive (
    topic pg_catalog.text,
    type pg_catalog.text DEFAULT NULL,
    max_messages pg_catalog.int4 DEFAULT NULL,
    dry_run pg_catalog.bool DEFAULT false
)
RETURNS pg_catalog.int8
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'redrive_wrapper';

COMMENT ON FUNCTION outbox.redrive IS
'Gives all dead messages of a topic another life, or those of one type, oldest first, at most max_messages; returns '
'how many. dry_run only counts. It waits for a transaction that is changing one of them. Errors: 22004, 22023, '
'25006.';

CREATE FUNCTION outbox.discard (
    topic pg_catalog.text,
    type pg_catalog.text DEFAULT NULL,
    before pg_catalog.timestamptz DEFAULT NULL,
    max_messages pg_catalog.int4 DEFAULT NULL,
    dry_run pg_catalog.bool DEFAULT false
)
RETURNS pg_catalog.int8
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'discard_wrapper';

COMMENT ON FUNCTION outbox.discard IS
'Makes ready and waiting messages of a topic dead, or those of one type or appended before a time, oldest first, at '
'most max_messages; returns how many. Leased ones stay. dry_run only counts. It waits for a transaction that is '
'changing one of them. Errors: 22004, 22023, 25006.';

CREATE FUNCTION outbox.pause (topic pg_catalog.text)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'pause_wrapper';

COMMENT ON FUNCTION outbox.pause IS
'Makes claims skip the topic from the next call on. Appends go on, and leases can be answered. False if it was '
'paused already. Errors: 22004, 22023, 25006, 40001.';

CREATE FUNCTION outbox.resume (topic pg_catalog.text)
RETURNS pg_catalog.bool
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'resume_wrapper';

COMMENT ON FUNCTION outbox.resume IS
'Ends a pause: the topic can be claimed again. False if it was not paused. Errors: 22004, 22023, 25006, 40001.';

CREATE FUNCTION outbox.set_topic (topic pg_catalog.text, settings pg_catalog.jsonb)
RETURNS pg_catalog.void
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'set_topic_wrapper';

COMMENT ON FUNCTION outbox.set_topic IS
'Overrides settings for a topic from the next call on, all given ones or none. settings is a JSON object with '
'max_attempts, backoff_seconds, backoff_max_seconds, lease_seconds, batch_size, retention_days (whole numbers, in '
'the range of the setting of that name) and block_on_dead (boolean: a dead message blocks its key); null removes an '
'override. Errors: 22004, 22023 (unknown key, type, range), 25006, 40001.';

CREATE FUNCTION outbox.cloudevent (id pg_catalog.uuid)
RETURNS pg_catalog.jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'cloudevent_wrapper';

COMMENT ON FUNCTION outbox.cloudevent IS
'Returns a stored message as a CloudEvents 1.0 event in JSON, or NULL if it is not stored: id, source '
'(/database/topic, percent-encoded), specversion, type, time, subject (its key), datacontenttype '
'(headers.content-type, else application/json), traceparent and tracestate (of headers), data (its payload). Errors: '
'22004, 22023.';

CREATE FUNCTION outbox.grant_access (role_name pg_catalog.text, capability pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'grant_access_wrapper';

COMMENT ON FUNCTION outbox.grant_access IS
'Gives an existing role a capability, and the privileges for it: producer (append), worker (claim, answer, '
'consume_once), operator (topics, dead letters, purge, access, all views), monitor (stats and status), or '
'producer:topic and worker:topic for one topic more; topic * means all. Errors: 22004, 22023 (unknown capability), '
'42704 (no such role), 25006.';

CREATE FUNCTION outbox.revoke_access (role_name pg_catalog.text, capability pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'revoke_access_wrapper';

COMMENT ON FUNCTION outbox.revoke_access IS
'Takes away a right that outbox.grant_access() gave, also from a role that is gone: a capability with all its '
'topics, or one topic of it. Does nothing if the role lacks the right, or has it for all topics and is to lose one. '
'Errors: 22004, 22023 (unknown capability), 42704 (no such role), 25006.';

CREATE FUNCTION outbox.apply_access ()
RETURNS pg_catalog.trigger
LANGUAGE c SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'apply_access_wrapper';

CREATE TRIGGER apply AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.access
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.apply_access();

CREATE FUNCTION outbox.forget_access ()
RETURNS pg_catalog.event_trigger
LANGUAGE c SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'apply_access_wrapper';

CREATE EVENT TRIGGER outbox_forget_access ON ddl_command_end WHEN TAG IN ('DROP OWNED')
    EXECUTE FUNCTION outbox.forget_access();

COMMENT ON FUNCTION outbox.apply_access IS 'Makes privileges follow the rows of outbox.access. Private.';
COMMENT ON FUNCTION outbox.forget_access IS
'Removes rows of outbox.access whose privileges DROP OWNED has taken. Private.';
COMMENT ON EVENT TRIGGER outbox_forget_access IS
'Removes rights of outbox.grant_access() when DROP OWNED takes their privileges';

CREATE FUNCTION outbox.read_stats ()
RETURNS TABLE (
    topic pg_catalog.text,
    ready pg_catalog.int8,
    leased pg_catalog.int8,
    waiting pg_catalog.int8,
    dead pg_catalog.int8,
    oldest_ready_seconds pg_catalog.int8,
    delivered_total pg_catalog.int8,
    failed_total pg_catalog.int8,
    stale_total pg_catalog.int8
)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'read_stats_wrapper';

COMMENT ON FUNCTION outbox.read_stats IS 'The rows of outbox.stats. Private; read the view.';

CREATE FUNCTION outbox.read_status ()
RETURNS TABLE (name pg_catalog.text, ok pg_catalog.bool, detail pg_catalog.text)
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'read_status_wrapper';

COMMENT ON FUNCTION outbox.read_status IS 'The rows of outbox.status. Private; read the view.';

CREATE FUNCTION outbox.purge (max_messages pg_catalog.int4 DEFAULT 10000)
RETURNS pg_catalog.int8
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path TO pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'purge_wrapper';

COMMENT ON FUNCTION outbox.purge IS
'Deletes at most max_messages delivered and dead messages past their retention, and markers of consumers past '
'theirs; returns how many messages. Repeat until 0. Leaves rows that are locked or that a foreign key refers to. '
'Errors: 22004, 22023, 25006.';
