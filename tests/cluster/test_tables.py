"""What people and tools do to any table, done to ours while messages come and go: nothing is lost, delivered twice or left.

Each test runs a load beside it: clients append, with ids of theirs (some twice, at the same time) and without, one by one
and in batches, with keys and without; workers claim, complete, fail and release.
"""

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from conftest import append, check_storage, claim, one, rows, value

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
import setup  # noqa: E402

TABLES = ("outbox.envelope", "outbox.delivery")
# pg_repack's own triggers and log; the copy is swapped in by TRUNCATE, which gives the table another file.
LOG = """
    CREATE TABLE log (n bigserial PRIMARY KEY, was bigint, becomes {table});
    CREATE TABLE copy (LIKE {table} INCLUDING ALL);
    CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO log (was, becomes) VALUES (CASE WHEN TG_OP <> 'INSERT' THEN OLD.seq END,
                                             CASE WHEN TG_OP <> 'DELETE' THEN NEW END);
      RETURN NULL;
    END $$;
    CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION log();
    ALTER TABLE {table} ENABLE ALWAYS TRIGGER log"""
APPLY = """
    DO $$
    DECLARE
      entry record;
    BEGIN
      FOR entry IN WITH taken AS (DELETE FROM log RETURNING *) SELECT * FROM taken ORDER BY n LOOP
        DELETE FROM copy WHERE seq = entry.was;
        IF entry.becomes IS DISTINCT FROM NULL THEN INSERT INTO copy SELECT (entry.becomes).*; END IF;
      END LOOP;
    END $$"""


class Load:
    """Clients and workers, from `with` to the end of its block."""

    def __init__(self, server, database, seed):
        self.server, self.database, self.seed = server, database, seed
        self.going = True
        self.errors, self.lock = [], threading.Lock()
        self.appended, self.completed = set(), []
        jobs = [self.append] * 3 + [self.work] * 3
        self.threads = [threading.Thread(target=self.guarded, args=[job, n]) for n, job in enumerate(jobs)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *failure):
        time.sleep(0.5)
        self.going = False
        for thread in self.threads:
            thread.join()

    def guarded(self, job, n):
        choose = random.Random(self.seed + n)
        try:
            with self.server.connect(self.database, autocommit=True) as connection:
                while self.going:
                    job(connection, choose)
        except Exception as error:
            self.errors.append(error)

    def append(self, connection, choose):
        key = choose.choice([None, "a", "b", "c"])
        # The clients choose from few ids, so that two often append the same at the same time.
        given = uuid.UUID(int=int(time.time() * 200) << 64 | 1 << 63 | 7 << 76)
        if choose.random() < 0.3:
            elements = [{"type": "t", "payload": n, "key": key} for n in range(3)]
            elements[0]["id"] = str(given)
            new = [row[0] for row in rows(connection, "append_batch", "orders", psycopg.types.json.Jsonb(elements))]
        else:
            new = [append(connection, key=key, id=given if choose.random() < 0.5 else None)]
        with self.lock:
            self.appended.update(new)

    def work(self, connection, choose):
        claimed = claim(connection, "orders", batch_size=20)
        for message in claimed:
            chance = choose.random()
            if chance < 0.1:
                value(connection, "fail", message.token, "no", "2000-01-01")
            elif chance < 0.2:
                value(connection, "release", message.token)
            elif value(connection, "complete", message.token):
                self.completed.append(message.id)

    def check(self, connection):
        """When it is over: every message appended was delivered, once."""
        assert self.errors == []
        assert len(self.appended) > 200
        while claimed := claim(connection, batch_size=500):
            for row in rows(connection, "complete_batch", [message.token for message in claimed]):
                assert row.completed
            self.completed += [message.id for message in claimed]
        assert len(self.completed) == len(set(self.completed))
        assert self.appended == set(self.completed)
        assert one(connection, "SELECT count(*) FROM outbox.delivery") == 0
        assert one(connection, "SELECT count(*) FROM outbox.envelope") == len(self.appended)
        assert one(connection, "SELECT ok AND detail NOT LIKE '%%slower%%' FROM outbox.status WHERE name = 'tables'")
        check_storage(connection)


@pytest.fixture
def load(server, database, seed):
    return Load(server, database, seed)


def test_a_table_is_rewritten_by_log_and_swap(server, database, db, load):
    """As pg_repack does it, on every version."""
    with load, server.connect(database, autocommit=True) as other:
        for table in TABLES * 2:
            other.execute(LOG.format(table=table))
            with other.transaction():
                other.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                other.execute("DELETE FROM log")
                other.execute(f"INSERT INTO copy SELECT * FROM ONLY {table}")
            time.sleep(0.3)
            other.execute(APPLY)
            with other.transaction():
                other.execute("LOCK TABLE outbox.envelope, outbox.delivery")
                other.execute(APPLY)
                difference = f"(TABLE {table} EXCEPT TABLE copy) UNION ALL (TABLE copy EXCEPT TABLE {table})"
                assert other.execute(difference).fetchall() == []
                other.execute(f"ALTER TABLE {table} DISABLE TRIGGER log")
                other.execute(f"TRUNCATE {table}")
                other.execute(f"INSERT INTO {table} SELECT * FROM copy")
                other.execute(f"DROP TRIGGER log ON {table}")
            other.execute("DROP TABLE copy, log; DROP FUNCTION log()")
    load.check(db)


def test_pg_repack(server, database, db, load):
    """The program itself, where Debian has it: for 15."""
    if db.info.server_version // 10000 != 15:
        return  # the test above does what it does
    program = setup.pg_repack(os.environ["PG_CONFIG"])
    db.execute("CREATE EXTENSION pg_repack")
    libraries = setup.output(os.environ["PG_CONFIG"], "--libdir")
    command = [program, "--no-superuser-check", "-d", database, *(f"--table={table}" for table in TABLES)]
    with load:
        for _ in range(3):
            done = subprocess.run(
                command, env={**server.env, "LD_LIBRARY_PATH": libraries}, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
    load.check(db)


def test_indexes_are_made_again_concurrently(server, database, db, load):
    # What an earlier one that failed has left: it decides whether an id is new, too.
    db.execute("CREATE UNIQUE INDEX envelope_id_key_ccnew ON outbox.envelope (id)")
    db.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.envelope_id_key_ccnew'::regclass")
    with load:
        for table in TABLES * 2:
            db.execute(f"REINDEX TABLE CONCURRENTLY {table}")
    db.execute("DROP INDEX outbox.envelope_id_key_ccnew")
    load.check(db)


CALLS = {
    "append": "SELECT outbox.append('t', 't', '1', id => %s)",
    "append_batch": "SELECT outbox.append_batch('t', jsonb_build_array(jsonb_build_object('type', 't', 'payload', 1, 'id', %s::uuid)))",
    "consume_once": "SELECT outbox.consume_once('c', %s)",
}


@pytest.mark.parametrize("name", CALLS)
def test_an_index_is_made_again_between_the_statements_of_a_transaction(server, database, db, name):
    with server.connect(database) as connection:
        connection.execute(CALLS[name], [uuid.uuid4()])
        connection.commit()
        connection.execute("SELECT 1")
        for table in ("envelope", "processed"):
            db.execute(f"REINDEX TABLE CONCURRENTLY outbox.{table}")
        connection.execute(CALLS[name], [uuid.uuid4()])
        connection.commit()


@pytest.mark.parametrize(
    "change, undone",
    [
        ("ADD TABLE outbox.delivery WHERE (attempts < 5)", "SET TABLE outbox.delivery"),
        ("ADD TABLE outbox.delivery (topic, place)", "SET TABLE outbox.delivery (seq, topic, place)"),
        ("ADD TABLE outbox.delivery", None),
    ],
)
def test_changes_that_subscribers_cannot_follow_are_refused(db, change, undone):
    """Row filters and column lists there are from PostgreSQL 15 on; the last case is for any."""
    if db.info.server_version < 150000 and undone:
        return
    append(db)
    db.execute("CREATE PUBLICATION p")
    db.execute(f"ALTER PUBLICATION p {change}")
    if undone is None:
        assert len(claim(db)) == 1
        return
    with pytest.raises(psycopg.Error) as refused:
        claim(db)
    assert refused.value.sqlstate == "42P10"
    with pytest.raises(psycopg.Error) as by_core:
        db.execute("UPDATE outbox.delivery SET attempts = 1")
    assert by_core.value.sqlstate == refused.value.sqlstate
    detail = one(db, "SELECT detail FROM outbox.status WHERE name = 'tables' AND NOT ok")
    assert "cannot update table" in detail
    db.execute(f"ALTER PUBLICATION p {undone}")
    assert len(claim(db)) == 1
