-- purge goes around what other tables refer to, and one kind of rows that cannot be deleted does not keep the others.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql AS
$$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE PROCEDURE pg_temp.age() LANGUAGE sql AS $$
  UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year';
  UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year';
  UPDATE outbox.delivery SET ended_at = ended_at - interval '1 year' WHERE ended_at IS NOT NULL;
  UPDATE outbox.processed SET processed_at = processed_at - interval '1 year';
$$;
-- Of nine messages 1 to 4 are delivered together, 5 and 6 dead, 7 and 8 halves, 9 is ready; with four markers.
CREATE PROCEDURE pg_temp.fill() LANGUAGE sql AS $$
  DELETE FROM outbox.envelope;
  TRUNCATE outbox.delivery, outbox.receipt;
  DELETE FROM outbox.processed;
  SELECT outbox.append('purge', 'e', to_jsonb(n), pg_temp.id(n)) FROM generate_series(1, 9) AS n;
  SELECT outbox.complete_batch(ARRAY (SELECT token FROM outbox.claim('worker', batch_size => 4)));
  SELECT outbox.abandon(token) FROM outbox.claim('worker', batch_size => 2);
  DELETE FROM outbox.delivery WHERE seq IN (SELECT seq FROM outbox.envelope WHERE payload IN ('7', '8'));
  SELECT outbox.consume_once('mail', pg_temp.id(n)) FROM generate_series(11, 14) AS n;
  CALL pg_temp.age();
$$;
CREATE VIEW pg_temp.stored AS SELECT array_agg(payload ORDER BY payload) AS messages,
       (SELECT array_agg(right(message_id::text, 2) ORDER BY message_id) FROM outbox.processed) AS markers,
       (SELECT count(*) FROM outbox.receipt) AS receipts
  FROM outbox.envelope;

-- By id.
CREATE TABLE effect (message uuid CONSTRAINT caused_by REFERENCES outbox.envelope (id),
                     consumer text COLLATE "C", consumed uuid, CONSTRAINT once FOREIGN KEY (consumer, consumed) REFERENCES outbox.processed);
CALL pg_temp.fill();
INSERT INTO effect SELECT pg_temp.id(n) FROM unnest('{2,5,7}'::int[]) AS n;
INSERT INTO effect (consumer, consumed) VALUES ('mail', pg_temp.id(12));
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT outbox.purge();
SELECT name, ok, detail FROM outbox.status WHERE name = 'foreign keys';
DELETE FROM effect WHERE message = pg_temp.id(2) OR consumer IS NOT NULL;
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
DELETE FROM effect;
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
-- More are referred to than one call may delete.
DELETE FROM effect;
CALL pg_temp.fill();
INSERT INTO effect SELECT pg_temp.id(n) FROM generate_series(1, 3) AS n;
SELECT outbox.purge(1);
SELECT outbox.purge(1);
SELECT outbox.purge(1);
-- Which of the others go first is nobody's promise.
SELECT cardinality(messages) AS stored, messages @> '{1,2,3,9}'::jsonb[] AS kept, markers, receipts FROM pg_temp.stored;
-- Deferred, and by number; a key that acts on the delete keeps nothing.
DROP TABLE effect;
CREATE TABLE effect (message bigint REFERENCES outbox.envelope (seq) DEFERRABLE INITIALLY DEFERRED,
                     other uuid REFERENCES outbox.envelope (id) ON DELETE CASCADE);
CALL pg_temp.fill();
INSERT INTO effect SELECT seq FROM outbox.envelope WHERE payload = '3';
INSERT INTO effect (other) VALUES (pg_temp.id(1));
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
SELECT count(*) FROM effect;
SELECT detail FROM outbox.status WHERE name = 'foreign keys';
DROP TABLE effect;
SELECT detail FROM outbox.status WHERE name = 'foreign keys';

-- What cannot be looked up, like a value of another type, purge learns by the error: the other kinds are deleted, then
-- the error is raised.
CREATE DOMAIN message_id AS uuid;
CREATE TABLE effect (message message_id CONSTRAINT caused_by REFERENCES outbox.envelope (id));
CALL pg_temp.fill();
INSERT INTO effect VALUES (pg_temp.id(2));
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
SELECT outbox.purge();
DROP TABLE effect;
DROP DOMAIN message_id;

-- So it is with a trigger that raises.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'not this one' USING ERRCODE = 'ZZ001'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON outbox.processed FOR EACH ROW EXECUTE FUNCTION refuse();
CALL pg_temp.fill();
SELECT outbox.purge();
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
DROP TRIGGER refuse ON outbox.processed;
SELECT outbox.purge();
CREATE TRIGGER refuse BEFORE DELETE ON outbox.receipt FOR EACH ROW EXECUTE FUNCTION refuse();
CALL pg_temp.fill();
SELECT outbox.purge();
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
DROP TRIGGER refuse ON outbox.receipt;
-- A trigger that skips the row without an error: purge ends all the same.
CREATE FUNCTION pg_temp.skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER skip BEFORE DELETE ON outbox.envelope FOR EACH ROW EXECUTE FUNCTION pg_temp.skip();
CALL pg_temp.fill();
SELECT outbox.purge();
SELECT outbox.purge();
SELECT * FROM pg_temp.stored;
DROP TRIGGER skip ON outbox.envelope;
SELECT outbox.purge() + outbox.purge();
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed;
