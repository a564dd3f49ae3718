"""Logical replication and decoding see every change: what the extension writes past the executor is ordinary WAL.
A subscriber has the same rows, and can be worked on once it is on its own.
"""

import json
import uuid

import pytest
from conftest import append, claim, one, rows, states, until, value
from server import Server

CONF = {"wal_level": "logical", "max_prepared_transactions": 4}
TABLES = "envelope", "delivery", "receipt", "processed", "topic"


def work(db):
    """Everything that can happen to a message, given up and kept."""
    ids = [append(db, payload=json.dumps("x" * 100_000), id=uuid.uuid4() if n % 2 else None) for n in range(12)]
    batch = [{"type": "t", "payload": n, "id": str(uuid.uuid4())} for n in range(300)]
    rows(db, "append_batch", "batch", json.dumps(batch))
    append(db, id=ids[1])
    leased = claim(db, "orders")
    for message, answer in zip(leased, ["complete", "fail", "abandon", "release", "extend"] * 2):
        assert value(db, answer, message.token)
    rows(db, "complete_batch", [m.token for m in claim(db, "batch", batch_size=250)])
    assert value(db, "retry_dead", leased[2].id)
    for message in ids:
        value(db, "consume_once", "mail", message)
        value(db, "consume_once", "mail", message)
    with db.transaction(force_rollback=True):
        append(db, id=uuid.uuid4())
        claim(db)
    with db.transaction():
        with db.transaction(force_rollback=True):
            append(db, id=uuid.uuid4())
            claim(db, "batch", batch_size=10)
        append(db, id=uuid.uuid4())
    db.execute("BEGIN")
    append(db)
    db.execute("PREPARE TRANSACTION 'outbox_replication'")
    db.execute("COMMIT PREPARED 'outbox_replication'")
    db.execute("UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year'")
    db.execute("UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year' WHERE mod(first, 2) = 0")
    assert value(db, "purge") > 0


def content(db):
    return {table: db.execute(f"SELECT t::text FROM outbox.{table} AS t ORDER BY 1").fetchall() for table in TABLES}


@pytest.fixture
def subscriber(server, database, db):
    """A connection to another database that follows `database`; it is empty but for the extension."""
    name = f"{database}_copy"[-60:]
    server.createdb(name, extension="outbox")
    tables = ", ".join(f"outbox.{table}" for table in TABLES)
    db.execute(f"CREATE PUBLICATION outbox_all FOR TABLE {tables}")
    db.execute("SELECT pg_create_logical_replication_slot('outbox_copy', 'pgoutput')")
    with server.connect(name, autocommit=True) as copy:
        copy.execute(
            f"""CREATE SUBSCRIPTION outbox_copy CONNECTION 'host={server.socket} port={server.port} user=postgres
                dbname={database}' PUBLICATION outbox_all WITH (create_slot = false, slot_name = 'outbox_copy')"""
        )
        yield copy
        copy.execute("DROP SUBSCRIPTION IF EXISTS outbox_copy")
    server.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_a_subscriber_has_the_same_rows_and_can_take_over(db, subscriber):
    append(db)  # copied at the start
    work(db)
    until(lambda: content(subscriber) == content(db))
    work(db)
    until(lambda: content(subscriber) == content(db))
    token = claim(db)[0].token
    until(lambda: content(subscriber) == content(db))
    subscriber.execute("DROP SUBSCRIPTION outbox_copy")
    before = states(subscriber)
    assert one(subscriber, "SELECT last_value FROM outbox.arrival") == 1  # sequences are not replicated
    value(subscriber, "purge")
    assert states(subscriber) == before  # a copy: halves of messages may still be on their way
    assert value(subscriber, "complete", token)
    message = append(subscriber)
    until(lambda: message in [m.id for m in claim(subscriber, batch_size=500)])


def test_a_subscriber_that_lacks_a_role_follows_all_tables(server, database, db):
    """A role's right waits there for the role, and nothing behind it waits."""
    rights = lambda on: on.execute("SELECT role, capability, topic FROM outbox.access ORDER BY 1, 3").fetchall()  # noqa: E731
    db.execute("CREATE ROLE shop")
    value(db, "grant_access", "shop", "producer:orders")
    db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    with Server(conf=CONF) as other:
        other.createdb("copy", extension="outbox")
        with other.connect("copy", autocommit=True) as copy:
            copy.execute(
                f"""CREATE SUBSCRIPTION everything CONNECTION 'host={server.socket} port={server.port} user=postgres
                    dbname={database}' PUBLICATION everything"""
            )
            until(lambda: rights(copy) == rights(db))
            value(db, "grant_access", "shop", "producer:bills")
            db.execute("ALTER ROLE shop RENAME TO store")
            value(db, "purge")
            value(db, "revoke_access", "store", "producer:orders")
            message = append(db)
            until(lambda: states(copy) == {message: "ready"})
            assert rights(copy) == rights(db) == [("store", "producer", "bills")]
            copy.execute("DROP SUBSCRIPTION everything")
            copy.execute("CREATE ROLE store")
            value(copy, "purge")
            copy.execute("SET ROLE store")
            assert one(copy, "SELECT has_function_privilege('outbox.append'::regproc, 'EXECUTE')")
    db.execute("DROP PUBLICATION everything")
    value(db, "revoke_access", "store", "producer")
    db.execute("DROP ROLE store")


def test_decoding_shows_what_was_committed_and_nothing_else(db):
    db.execute("SELECT pg_create_logical_replication_slot('decoded', 'test_decoding')")
    work(db)
    changes = [row[0] for row in db.execute("SELECT data FROM pg_logical_slot_get_changes('decoded', NULL, NULL)")]
    inserted = [line for line in changes if line.startswith("table outbox.envelope: INSERT")]
    assert len(inserted) == one(db, "SELECT count(*) FROM outbox.envelope") + len(
        [line for line in changes if line.startswith("table outbox.envelope: DELETE")]
    )
    assert all(str(message) in "".join(inserted) for message in states(db))
    db.execute("SELECT pg_drop_replication_slot('decoded')")
