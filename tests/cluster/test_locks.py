"""Who locks several tables, as an update, DROP EXTENSION or TRUNCATE do, and who uses them wait for each other in a line.

Whoever has a lock on any table of the extension has one on the first of them, `outbox.envelope`, and asked for that first.
"""

import threading

import pytest
from conftest import CALLS, append, one, rows, until

READS = ("stats", "status", "message")
LOCKED = """
    SELECT coalesce(array_agg(DISTINCT relation::regclass::text), '{}') FROM pg_locks
     WHERE pid = %s AND granted AND relation IN (
           SELECT c.oid FROM pg_class AS c WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'i'))"""
BLOCKED = "SELECT array_agg(relation::regclass::text) FROM pg_locks WHERE pid = %s AND NOT granted"


@pytest.fixture
def busy(server, database):
    """A connection for what blocks."""
    with server.connect(database) as connection:
        yield connection


def run(connection, name):
    if name in CALLS:
        rows(connection, name, *CALLS[name])
    else:
        connection.execute(f"SELECT * FROM outbox.{name}").fetchall()


@pytest.mark.parametrize("name", [*CALLS, *READS])
def test_a_session_that_waits_for_the_first_table_has_locked_no_other(server, database, db, busy, name):
    append(db)
    busy.autocommit = name == "wait"
    pid = busy.info.backend_pid
    with server.connect(database) as holder:
        holder.execute("LOCK TABLE outbox.envelope")
        caller = threading.Thread(target=run, args=[busy, name])
        caller.start()
        try:
            until(lambda: one(db, BLOCKED, pid) == ["outbox.envelope"])
            assert one(db, LOCKED, pid) == []
        finally:
            holder.rollback()
            caller.join()


IN_A_TRANSACTION = [name for name in CALLS if name != "wait"]
DROP = "DROP EXTENSION outbox"
OTHERS = (
    "TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt",
    "LOCK TABLE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic, outbox.access",
)


@pytest.mark.parametrize(
    "first, several", [(name, DROP) for name in IN_A_TRANSACTION] + [("consume_once", other) for other in OTHERS]
)
def test_a_transaction_that_uses_tables_goes_on_beside_one_that_wants_all(server, database, db, busy, first, several):
    append(db)
    run(busy, first)
    with server.connect(database) as wanting:
        wanted = threading.Thread(target=attempt, args=[wanting, several])
        wanted.start()
        try:
            # At the first table; from PostgreSQL 18 on, before it at what a GRANT has locked.
            until(lambda: one(db, BLOCKED, wanting.info.backend_pid))
            for name in [*CALLS, *READS]:
                if name not in ("wait", "grant_access", "revoke_access"):  # those two alter what is being dropped
                    run(busy, name)
        finally:
            busy.rollback()
            wanted.join()


def attempt(connection, statement):
    connection.execute(statement)
    connection.rollback()
