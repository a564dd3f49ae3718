-- triggers: people's triggers on the tables are called for every write, as for any table.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
\set SHOW_CONTEXT never
CREATE TABLE journal (n serial, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  change text;
BEGIN
  IF TG_LEVEL = 'ROW' THEN
    change := concat_ws(' -> ', CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) ->> TG_ARGV[0] END,
                                CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) ->> TG_ARGV[0] END);
  END IF;
  INSERT INTO journal (what) VALUES (concat_ws(' ', TG_TABLE_NAME, TG_WHEN, TG_OP, TG_LEVEL, change));
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION note('attempts');
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION note('attempts');
CREATE TRIGGER sb BEFORE INSERT OR UPDATE OR DELETE ON outbox.delivery EXECUTE FUNCTION note();
CREATE TRIGGER sa AFTER INSERT OR UPDATE OR DELETE ON outbox.delivery EXECUTE FUNCTION note();
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON outbox.envelope FOR EACH ROW EXECUTE FUNCTION note('type');
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON outbox.receipt FOR EACH ROW EXECUTE FUNCTION note('attempts');
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON outbox.processed FOR EACH ROW EXECUTE FUNCTION note('consumer');
CREATE TRIGGER of AFTER UPDATE OF lease, seq ON outbox.delivery FOR EACH ROW WHEN (NEW.lease_owner = 'w2') EXECUTE FUNCTION note('lease_owner');
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';

-- The whole life of messages, with keys, and of markers.
SELECT count(*) FROM outbox.append_batch('t', '[{"type": "one", "payload": 1, "key": "k"}, {"type": "two", "payload": 2, "key": "k"}]');
SELECT count(outbox.append('t', 'three', '3', id => '00000000-0000-4000-8000-000000000003'));
SELECT count(outbox.append('t', 'four', '4', id => '00000000-0000-4000-8000-000000000003'));
SELECT outbox.consume_once('c', '00000000-0000-4000-8000-000000000003'), outbox.consume_once('c', '00000000-0000-4000-8000-000000000003');
SELECT what FROM journal ORDER BY n;
TRUNCATE journal;
SELECT type, attempts, outbox.complete(token) FROM outbox.claim('w1', batch_size => 1);
SELECT what FROM journal ORDER BY n;
TRUNCATE journal;
SELECT type, attempts, outbox.fail(token, 'no', clock_timestamp()) FROM outbox.claim('w2');
SELECT what FROM journal ORDER BY n;
TRUNCATE journal;
CREATE TEMP TABLE held AS SELECT * FROM outbox.claim('w3');
SELECT outbox.release(token), outbox.release(token) FROM held WHERE type = 'two';
SELECT outbox.extend(token) IS NOT NULL, outbox.abandon(token) FROM held WHERE type = 'three';
SELECT outbox.redrive('t');
SELECT count(outbox.complete(token)) FROM outbox.claim('w4');
SELECT event_type, state FROM outbox.message ORDER BY payload;
SELECT what, count(*) FROM journal GROUP BY what ORDER BY what;
TRUNCATE journal;
DROP TABLE held;
BEGIN;
SAVEPOINT s;
SELECT count(outbox.append('t', 'gone', '5', id => '00000000-0000-4000-8000-000000000005'));
ROLLBACK TO s;
SELECT count(outbox.append('t', 'here', '5', id => '00000000-0000-4000-8000-000000000005'));
COMMIT;
SELECT what FROM journal WHERE what LIKE 'envelope%' ORDER BY n;
DROP TRIGGER b ON outbox.delivery;
DROP TRIGGER a ON outbox.delivery;
DROP TRIGGER sb ON outbox.delivery;
DROP TRIGGER sa ON outbox.delivery;
DROP TRIGGER of ON outbox.delivery;
DROP TRIGGER a ON outbox.envelope;
DROP TRIGGER a ON outbox.receipt;
DROP TRIGGER a ON outbox.processed;
SELECT name, ok, detail FROM outbox.status WHERE name = 'tables';
TRUNCATE journal, outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed;

-- Transition tables, and constraint triggers that are called at the end.
CREATE FUNCTION total() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO journal (what) SELECT 'new rows: ' || string_agg(type, ', ' ORDER BY seq) FROM fresh;
  RETURN NULL;
END $$;
CREATE TRIGGER total AFTER INSERT ON outbox.envelope REFERENCING NEW TABLE AS fresh EXECUTE FUNCTION total();
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON outbox.envelope DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note('type');
BEGIN;
SELECT count(*) FROM outbox.append_batch('t', '[{"type": "one", "payload": 1}, {"type": "two", "payload": 2}]');
INSERT INTO journal (what) VALUES ('still open');
COMMIT;
SELECT what FROM journal ORDER BY n;
DROP TRIGGER total ON outbox.envelope;
DROP TRIGGER late ON outbox.envelope;
TRUNCATE journal;

-- A trigger that fails: nothing is stored.
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today' USING ERRCODE = 'check_violation'; END $$;
CREATE TRIGGER no AFTER INSERT ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION no();
\set VERBOSITY sqlstate
SELECT outbox.append('t', 'three', '3');
\set VERBOSITY default
DROP TRIGGER no ON outbox.delivery;
SELECT count(*) FROM outbox.envelope;

-- Before a row is written a trigger may change what nothing depends on.
CREATE FUNCTION mask() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.payload := jsonb_set(NEW.payload, '{card}', '"****"');
  NEW.headers := '{"masked": "yes"}';
  RETURN NEW;
END $$;
CREATE TRIGGER mask BEFORE INSERT ON outbox.envelope FOR EACH ROW EXECUTE FUNCTION mask();
SELECT count(outbox.append('mask', 'paid', '{"card": "4111", "for": "me"}', key => 'k'));
SELECT count(outbox.append('mask', 'paid', '{"card": "4112"}', id => '00000000-0000-4000-8000-000000000004'));
SELECT topic, type, payload, key, headers FROM outbox.claim('w', 'mask');
DROP TRIGGER mask ON outbox.envelope;
-- Nothing else: not the number, the id, the topic, the state; and it may suppress nothing. That would be half a message.
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  CASE TG_ARGV[0]
    WHEN 'suppress' THEN RETURN NULL;
    WHEN 'seq' THEN NEW.seq := 1;
    WHEN 'id' THEN NEW.id := gen_random_uuid();
    WHEN 'topic' THEN NEW.topic := NEW.topic || 'x';
    WHEN 'payload' THEN NEW.payload := NULL;
    WHEN 'lease' THEN NEW.lease := NULL;
    WHEN 'place' THEN NEW.place := 'w';
    WHEN 'delivered_at' THEN NEW.delivered_at := 'infinity';
    WHEN 'row' THEN UPDATE outbox.delivery SET last_error = 'x' WHERE seq = OLD.seq AND pg_trigger_depth() = 1;
  END CASE;
  RETURN coalesce(NEW, OLD);
END $$;
CREATE PROCEDURE pg_temp.meddle(event text, tab text, what text, call text) LANGUAGE plpgsql AS $$
DECLARE
  detail text;
  hint text;
BEGIN
  EXECUTE format('CREATE TRIGGER meddle BEFORE %s ON outbox.%I FOR EACH ROW EXECUTE FUNCTION meddle(%L)', event, tab, what);
  BEGIN
    EXECUTE 'SELECT count(outbox.' || call || ')';
  EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RAISE NOTICE '% % %: % | % | % | %', event, tab, what, SQLSTATE, SQLERRM, CASE WHEN SQLSTATE = '55000' THEN detail END, hint;
  END;
  ROLLBACK;
END $$;
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('t', 'e', '1', id => '00000000-0000-4000-8000-000000000001'));
CALL pg_temp.meddle('INSERT', 'envelope', 'suppress', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('INSERT', 'envelope', 'suppress', 'append(''t'', ''e'', ''2'', id => ''00000000-0000-4000-8000-000000000002'')');
CALL pg_temp.meddle('INSERT', 'envelope', 'seq', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('INSERT', 'envelope', 'id', 'append(''t'', ''e'', ''2'', id => ''00000000-0000-4000-8000-000000000002'')');
CALL pg_temp.meddle('INSERT', 'envelope', 'topic', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('INSERT', 'envelope', 'payload', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('INSERT', 'delivery', 'suppress', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('INSERT', 'delivery', 'place', 'append(''t'', ''e'', ''2'')');
CALL pg_temp.meddle('UPDATE', 'delivery', 'suppress', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('UPDATE', 'delivery', 'lease', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('UPDATE', 'delivery', 'row', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('DELETE', 'delivery', 'suppress', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('DELETE', 'delivery', 'row', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('INSERT', 'receipt', 'delivered_at', 'complete(token)) FROM outbox.claim(''w''');
CALL pg_temp.meddle('INSERT', 'processed', 'suppress', 'consume_once(''c'', ''00000000-0000-4000-8000-000000000001'')');
SELECT payload, attempts FROM outbox.claim('w');

-- A trigger that appends, and one that is only for replicas.
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.topic = 't' THEN PERFORM outbox.append('audit', NEW.type, NEW.payload, key => 'k'); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER again AFTER INSERT ON outbox.envelope FOR EACH ROW EXECUTE FUNCTION again();
CREATE TRIGGER replica BEFORE INSERT ON outbox.envelope FOR EACH ROW EXECUTE FUNCTION no();
ALTER TABLE outbox.envelope ENABLE REPLICA TRIGGER replica;
SELECT count(*) FROM outbox.append_batch('t', '[{"type": "one", "payload": 1}, {"type": "two", "payload": 2}]');
SELECT topic, type, outbox.complete(token) FROM outbox.claim('w', 'audit');
DROP TRIGGER again ON outbox.envelope;
DROP TRIGGER replica ON outbox.envelope;

DROP TABLE journal;
DROP FUNCTION note(), total(), no(), mask(), meddle(), again();
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
