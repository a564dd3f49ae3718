-- constraints: foreign keys, checks and NOT NULL that people give the tables hold for every write.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
\set SHOW_CONTEXT never

-- A row of somebody's that refers to a delivery keeps it from being completed; or goes with it.
CREATE TABLE job (seq bigint CONSTRAINT job_of REFERENCES outbox.delivery, note text);
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
SELECT count(outbox.append('t', 'e', to_jsonb(n))) FROM generate_series(1, 3) AS n;
INSERT INTO job SELECT seq, 'mine' FROM outbox.delivery ORDER BY seq LIMIT 1;
CREATE TEMP TABLE held AS SELECT * FROM outbox.claim('w');
\set VERBOSITY terse
SELECT payload, outbox.complete(token) FROM held WHERE payload = '1';
SELECT * FROM outbox.complete_batch(ARRAY(SELECT token FROM held));
\set VERBOSITY default
SELECT payload, outbox.complete(token) FROM held WHERE payload = '2';
SELECT payload, outbox.fail(token, retry_at => clock_timestamp()) FROM held WHERE payload = '1';
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;
ALTER TABLE job DROP CONSTRAINT job_of, ADD CONSTRAINT job_of FOREIGN KEY (seq) REFERENCES outbox.delivery ON DELETE CASCADE;
SELECT payload, outbox.complete(token) FROM outbox.claim('w');
SELECT * FROM job;
-- Deferred: told at commit.
ALTER TABLE job DROP CONSTRAINT job_of, ADD CONSTRAINT job_of FOREIGN KEY (seq) REFERENCES outbox.delivery DEFERRABLE INITIALLY DEFERRED;
SELECT count(outbox.append('t', 'e', '4'));
INSERT INTO job SELECT max(seq), 'mine' FROM outbox.delivery;
BEGIN;
SELECT payload, outbox.complete(token) FROM outbox.claim('w');
\set VERBOSITY terse
COMMIT;
\set VERBOSITY default
SELECT payload, attempts FROM outbox.claim('w');
DROP TABLE job, held;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';

-- A foreign key of the table's own.
CREATE TABLE tenant (topic text COLLATE "C" PRIMARY KEY);
INSERT INTO tenant VALUES ('known');
ALTER TABLE outbox.envelope ADD CONSTRAINT tenants FOREIGN KEY (topic) REFERENCES tenant NOT VALID;
SELECT count(outbox.append('known', 'e', '1'));
SELECT outbox.append('unknown', 'e', '1');
SELECT outbox.append('unknown', 'e', '1', id => '00000000-0000-4000-8000-000000000001');
ALTER TABLE outbox.envelope DROP CONSTRAINT tenants;
DROP TABLE tenant;

-- Checks, and NOT NULL. What of the row the caller may not read, the error does not show.
TRUNCATE outbox.envelope, outbox.delivery;
ALTER TABLE outbox.envelope ADD CONSTRAINT small CHECK (payload <> '13'), ALTER COLUMN headers SET NOT NULL;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
SELECT count(outbox.append('t', 'e', '12', headers => '{}'));
\set VERBOSITY terse
SELECT outbox.append('t', 'e', '13', headers => '{}');
SELECT outbox.append('t', 'e', '13', headers => '{}', id => '00000000-0000-4000-8000-000000000001');
SELECT outbox.append('t', 'e', '12');
SELECT * FROM outbox.append_batch('t', '[{"type": "e", "payload": 12, "headers": {}}, {"type": "e", "payload": 13, "headers": {}}]');
\set VERBOSITY default
CREATE ROLE regress_outbox_app;
SELECT outbox.grant_access('regress_outbox_app', 'producer');
SET ROLE regress_outbox_app;
SELECT outbox.append('t', 'e', '13', headers => '{}');
RESET ROLE;
SELECT outbox.revoke_access('regress_outbox_app', 'producer');
DROP ROLE regress_outbox_app;
ALTER TABLE outbox.envelope DROP CONSTRAINT small, ALTER COLUMN headers DROP NOT NULL;
ALTER TABLE outbox.delivery ADD CONSTRAINT patient CHECK (attempts < 2);
TRUNCATE outbox.envelope, outbox.delivery;
SELECT count(outbox.append('t', 'e', '1'));
SELECT attempts, outbox.fail(token, retry_at => clock_timestamp()) FROM outbox.claim('w');
\set VERBOSITY terse
SELECT attempts FROM outbox.claim('w');
\set VERBOSITY default
ALTER TABLE outbox.delivery DROP CONSTRAINT patient;
SELECT attempts FROM outbox.claim('w');

-- Unique and exclusion constraints, also ones that are looked at only at commit.
ALTER TABLE outbox.envelope ADD CONSTRAINT once UNIQUE (topic, type) DEFERRABLE INITIALLY DEFERRED;
BEGIN;
SELECT count(outbox.append('once', 'e', '1'));
SELECT count(outbox.append('once', 'e', '2'));
\set VERBOSITY terse
COMMIT;
SELECT count(outbox.append('once', 'e', '1'));
SELECT outbox.append('once', 'e', '2');
\set VERBOSITY default
ALTER TABLE outbox.envelope DROP CONSTRAINT once;
-- Another unique index of the id decides as ours does.
CREATE UNIQUE INDEX mine ON outbox.envelope (id);
SELECT outbox.append('t', 'e', '1', id => '00000000-0000-4000-8000-000000000009'), outbox.append('t', 'e', '1', id => '00000000-0000-4000-8000-000000000009');
DROP INDEX outbox.mine;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
