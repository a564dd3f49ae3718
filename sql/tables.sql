-- A message has two halves with opposite lives. Its envelope is written once and never changes; its delivery
-- changes a few times and is then over, leaving a receipt. The wide half is append-only, the changing half is narrow.
--
-- src/pg/rows/shape.rs reads this file and compares the tables with it.
-- No foreign keys, no triggers, and no CHECK that a user's input can reach: it would print the payload.
-- The envelope comes first: every transaction that locks several tables locks it first, also DROP EXTENSION.
-- Names are compared bytewise (collation "C"), so that no upgrade of a collation library can break an index.

CREATE TABLE outbox.envelope (
    seq pg_catalog.int8 NOT NULL,
    id pg_catalog.uuid NOT NULL,
    occurred_at pg_catalog.timestamptz NOT NULL,
    available_at pg_catalog.timestamptz,
    topic pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    type pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key pg_catalog.text COLLATE pg_catalog."C",
    payload pg_catalog.jsonb NOT NULL,
    headers pg_catalog.jsonb,
    CONSTRAINT envelope_pkey PRIMARY KEY (seq),
    CONSTRAINT envelope_id_key UNIQUE (id)
) USING heap;

-- place: r = in the ready index (ready or leased), w = waiting, k = parked behind an older message of its key,
-- x = dead. "Leased" is no place of its own: a claim must change no column of an index or its predicate, or its update
-- is not HOT. The fillfactor leaves room on each page for a new version of every row: all claims are HOT. Columns that
-- a claim does not change stand at the end, where WAL leaves them out. Vacuum gives no pages back: to do so it locks
-- out every session, here and on standbys, and the next backlog needs the pages again. Autovacuum's defaults serve all
-- three tables: at 4,000 messages a second, delivery stays at some 15 MB, and envelope and receipt change only when
-- purge deletes.
CREATE TABLE outbox.delivery (
    seq pg_catalog.int8 NOT NULL,
    lease pg_catalog.int8,
    leased_until pg_catalog.timestamptz,
    available_at pg_catalog.timestamptz,
    ended_at pg_catalog.timestamptz,
    attempts pg_catalog.int2 NOT NULL,
    lease_owner pg_catalog.text COLLATE pg_catalog."C",
    last_error pg_catalog.text COLLATE pg_catalog."C",
    place pg_catalog."char" NOT NULL,
    topic pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key pg_catalog.text COLLATE pg_catalog."C",
    key_hash pg_catalog.int8,
    CONSTRAINT delivery_pkey PRIMARY KEY (seq)
) USING heap WITH (fillfactor = 40, vacuum_truncate = off);

CREATE INDEX delivery_ready ON outbox.delivery (topic, seq)
    WHERE place OPERATOR(pg_catalog.=) 'r'::pg_catalog."char";
CREATE INDEX delivery_waiting ON outbox.delivery (available_at)
    WHERE place OPERATOR(pg_catalog.=) 'w'::pg_catalog."char";
CREATE INDEX delivery_waiting_topic ON outbox.delivery (topic, available_at)
    WHERE place OPERATOR(pg_catalog.=) 'w'::pg_catalog."char";
CREATE INDEX delivery_dead ON outbox.delivery (topic, seq)
    WHERE place OPERATOR(pg_catalog.=) 'x'::pg_catalog."char";
CREATE INDEX delivery_parked ON outbox.delivery (topic, seq)
    WHERE place OPERATOR(pg_catalog.=) 'k'::pg_catalog."char";

-- The messages of a key: an index each for ready or leased ones, for waiting or parked ones, and for dead ones, so that
-- a look for one kind does not walk over the others. The key is a hash: comparing two texts takes twice as long.
CREATE INDEX delivery_key_ready ON outbox.delivery (key_hash, seq)
    WHERE place OPERATOR(pg_catalog.=) 'r'::pg_catalog."char" AND key_hash IS NOT NULL;
CREATE INDEX delivery_key_later ON outbox.delivery (key_hash, seq)
    WHERE place OPERATOR(pg_catalog.=) ANY ('{w,k}'::pg_catalog."char"[]) AND key_hash IS NOT NULL;
CREATE INDEX delivery_key_dead ON outbox.delivery (key_hash, seq)
    WHERE place OPERATOR(pg_catalog.=) 'x'::pg_catalog."char" AND key_hash IS NOT NULL;

-- One row for all messages that one call completed with the same number of attempts under one owner: all from first to
-- last, or only those in seqs. A row per message would cost 20 % of claim and complete.
-- last - first is below 65536, so a search for a number knows where to stop.
CREATE TABLE outbox.receipt (
    first pg_catalog.int8 NOT NULL,
    last pg_catalog.int8 NOT NULL,
    delivered_at pg_catalog.timestamptz NOT NULL,
    attempts pg_catalog.int2 NOT NULL,
    lease_owner pg_catalog.text COLLATE pg_catalog."C",
    seqs pg_catalog.int8[],
    CONSTRAINT receipt_pkey PRIMARY KEY (first, last)
) USING heap;

CREATE TABLE outbox.processed (
    consumer pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    message_id pg_catalog.uuid NOT NULL,
    processed_at pg_catalog.timestamptz NOT NULL,
    CONSTRAINT processed_pkey PRIMARY KEY (consumer, message_id)
) USING heap;

CREATE INDEX processed_processed_at ON outbox.processed (processed_at);

-- A row only for a topic that an operator has changed; NULL: the setting of that name counts.
CREATE TABLE outbox.topic (
    topic pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    paused pg_catalog.bool NOT NULL DEFAULT false,
    max_attempts pg_catalog.int4,
    backoff_seconds pg_catalog.int4,
    backoff_max_seconds pg_catalog.int4,
    lease_seconds pg_catalog.int4,
    batch_size pg_catalog.int4,
    retention_days pg_catalog.int4,
    block_on_dead pg_catalog.bool,
    CONSTRAINT topic_pkey PRIMARY KEY (topic)
) USING heap;

-- Rights, one a row; topic * for all. A row names its role, so that a dump restores on any server. The number is the
-- oid of the role when the row is written, or NULL if there is no such role; no dump carries it.
CREATE FUNCTION outbox.role_number (role pg_catalog.text)
RETURNS pg_catalog.oid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path TO pg_catalog, pg_temp
AS 'SELECT pg_catalog.to_regrole(pg_catalog.quote_ident($1))::pg_catalog.oid';

CREATE TABLE outbox.access (
    role pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    capability pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    topic pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    number pg_catalog.oid GENERATED ALWAYS AS (outbox.role_number(role)) STORED
) USING heap;

CREATE INDEX access_number ON outbox.access (number);

-- No unique key: in it, two roles that exchange their names would wait for each other.
ALTER TABLE outbox.access REPLICA IDENTITY FULL;

-- What claim returns. Its columns may grow at the end, never change.
CREATE TYPE outbox.claimed AS (
    id pg_catalog.uuid,
    token pg_catalog.uuid,
    topic pg_catalog.text,
    type pg_catalog.text,
    payload pg_catalog.jsonb,
    occurred_at pg_catalog.timestamptz,
    key pg_catalog.text,
    headers pg_catalog.jsonb,
    attempts pg_catalog.int4,
    leased_until pg_catalog.timestamptz
);

-- One value of this sequence numbers up to 1024 messages of one call: seq = value * 1024 + position in the call.
-- Beyond the maximum a number would not fit a token. src/tables/number.rs refuses a sequence of another shape.
CREATE SEQUENCE outbox.arrival AS pg_catalog.int8 MINVALUE 1 MAXVALUE 1125899906842623 CACHE 1 NO CYCLE;

COMMENT ON SEQUENCE outbox.arrival IS 'Arrival order: one value numbers up to 1024 messages of one call. Private.';
COMMENT ON TABLE outbox.envelope IS
'The content of a message: written once, never changed. Private; read outbox.message.';
COMMENT ON TABLE outbox.delivery IS
'The delivery of a message that is ready, leased, waiting or dead. Private; read outbox.message.';
COMMENT ON TABLE outbox.receipt IS 'One row for deliveries that were completed together. Private; read outbox.message.';
COMMENT ON TABLE outbox.processed IS
'Markers of outbox.consume_once(): consumer has applied the effect of message_id. outbox.purge() removes them.';
COMMENT ON TABLE outbox.topic IS 'Topics with settings or a pause of their own; NULL: the setting of that name counts';
COMMENT ON TABLE outbox.access IS 'Rights given by outbox.grant_access(). Private.';
COMMENT ON TYPE outbox.claimed IS 'A leased message, as outbox.claim() returns it';
COMMENT ON COLUMN outbox.delivery.lease IS 'Nonce of the current lease, part of its token';
COMMENT ON COLUMN outbox.delivery.place IS
'r ready or leased, w waiting, k parked behind an older message of its key, x dead';
COMMENT ON COLUMN outbox.delivery.key_hash IS 'FNV-1a of topic and key; different keys may share one';
COMMENT ON COLUMN outbox.receipt.seqs IS 'Numbers of the messages, ascending; NULL: all from first to last';
COMMENT ON COLUMN outbox.envelope.available_at IS 'The time that the producer asked for; NULL: at once';
COMMENT ON COLUMN outbox.access.number IS 'The role''s oid when the row was written; NULL if there was no such role';
COMMENT ON FUNCTION outbox.role_number IS 'The oid of a role, or NULL. Private.';

-- pg_dump takes the rows along.
SELECT pg_catalog.pg_extension_config_dump('outbox.arrival', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.envelope', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.receipt', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.processed', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.topic', '');
-- It leaves out rights of roles that are gone or, until outbox.purge() has seen it, renamed.
SELECT pg_catalog.pg_extension_config_dump('outbox.access',
    'WHERE number IS NULL OR EXISTS (SELECT FROM pg_catalog.pg_roles AS r
        WHERE r.oid OPERATOR(pg_catalog.=) number AND r.rolname OPERATOR(pg_catalog.=) role)');
