"""How a wait ends, and what it does not hold up."""

import contextlib
import os
import signal
import socket
import threading
import time
import uuid

import psycopg
import pytest
from conftest import append, claim, one, until, value
from waiter import AT_ONCE, CONF, PROMPT, SOON, Waiter, waiter


def test_empty_after_its_time(db):
    for seconds in 0, 1:
        started = time.monotonic()
        assert claim(db, wait_seconds=seconds) == []
        assert seconds <= time.monotonic() - started < seconds + AT_ONCE


def test_messages_that_are_there_are_not_waited_for(db):
    message = append(db)
    started = time.monotonic()
    assert [m.id for m in claim(db, wait_seconds=30, batch_size=10)] == [message]
    assert time.monotonic() - started < AT_ONCE


def test_cancel_ends_it_at_once(db, waiter):
    waiting = waiter()
    since = time.monotonic()
    assert one(db, "SELECT pg_cancel_backend(%s)", waiting.pid)
    assert waiting.result(since, AT_ONCE).sqlstate == "57014"


def test_terminate_ends_it_at_once(db, waiter):
    waiting = waiter()
    since = time.monotonic()
    assert one(db, "SELECT pg_terminate_backend(%s)", waiting.pid)
    assert waiting.result(since, AT_ONCE).sqlstate == "57P01"


def test_statement_timeout_ends_it(db, waiter):
    since = time.monotonic()
    waiting = waiter(prepare=["SET statement_timeout = '300ms'"])
    assert waiting.result(since, 0.3 + AT_ONCE).sqlstate == "57014"


def test_a_client_that_is_gone_is_noticed(server, database, db, waiter):
    """With client_connection_check_interval, a dead worker's session does not wait, nor claim, for nobody."""
    waiting = waiter(prepare=["SET client_connection_check_interval = '100ms'"])
    with socket.socket(fileno=os.dup(waiting.connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)
    until(lambda: one(db, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", waiting.pid) == 0, SOON)


def test_a_session_can_go_on_after_a_cancel(server, database, db):
    with server.connect(database, autocommit=True) as worker:
        for _ in range(3):
            timer = threading.Timer(0.2, lambda: one(db, "SELECT pg_cancel_backend(%s)", worker.info.backend_pid))
            timer.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                claim(worker, wait_seconds=30)
            timer.join()
        message = append(worker, id=uuid.uuid4())
        assert [m.id for m in claim(worker, wait_seconds=30)] == [message]


def test_a_cancel_gives_back_what_the_transaction_had_claimed(db, waiter):
    message = append(db)
    waiting = waiter("other", prepare=["BEGIN", "SELECT count(*) FROM outbox.claim('waiter', 'orders')"])
    assert claim(db) == []
    one(db, "SELECT pg_cancel_backend(%s)", waiting.pid)
    assert waiting.result(time.monotonic(), AT_ONCE).sqlstate == "57014"
    (again,) = claim(db)
    assert (again.id, again.attempts) == (message, 1)


def test_a_wait_does_not_hold_up_the_others(db, waiter):
    """Neither their work nor an operator's: a vacuum, an index, an analysis beside it."""
    waiting = waiter("orders")
    message = append(db, topic="other")
    assert value(db, "complete", claim(db, "other")[0].token)
    assert value(db, "append", "other", "placed", "2", id=message) == message
    db.execute("SET lock_timeout = '2s'")
    db.execute("VACUUM ANALYZE outbox.delivery")
    with db.transaction():
        db.execute("LOCK outbox.envelope, outbox.delivery, outbox.topic IN ACCESS EXCLUSIVE MODE")
    assert waiting.is_alive()
    append(db)
    assert len(waiting.result(time.monotonic())) == 1


def test_it_shows_in_pg_stat_activity(server, db, waiter):
    for call in False, True:
        waiting = waiter("orders", call=call)
        shown = "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"
        event = "Extension" if int(server.pg) < 17 else "OutboxMessage"
        assert db.execute(shown, [waiting.pid]).fetchone() == ("Extension", event)
        append(db)
        waiting.result(time.monotonic())


def test_the_procedure_holds_neither_snapshot_nor_lock_and_leases_nothing(db, waiter):
    waiting = waiter("orders", call=True)
    held = "SELECT backend_xmin, backend_xid FROM pg_stat_activity WHERE pid = %s"
    assert db.execute(held, [waiting.pid]).fetchone() == (None, None)
    time.sleep(1.2)  # it has looked again
    assert db.execute(held, [waiting.pid]).fetchone() == (None, None)
    assert one(db, "SELECT count(*) FROM pg_locks WHERE pid = %s AND relation IS NOT NULL", waiting.pid) == 0
    message = append(db)
    assert waiting.result(time.monotonic(), PROMPT) == []
    assert [m.id for m in claim(db)] == [message]


def test_the_procedure_waits_for_messages_that_others_hold(server, database, db, waiter):
    """A message that an open transaction has claimed is none, until that one rolls back."""
    append(db)
    with server.connect(database) as other:
        assert len(claim(other)) == 1
        waiting = waiter(call=True)
        time.sleep(1.2)
        assert waiting.is_alive()
        since = time.monotonic()
        other.rollback()
        waiting.result(since, PROMPT)


def test_a_session_woken_by_the_procedure_that_does_not_claim_leaves_the_message(db, waiter):
    waiters = [waiter("orders", call=True) for _ in range(2)]
    since = time.monotonic()
    append(db)
    for waiting in waiters:
        waiting.result(since)


def test_drop_extension_is_not_held_up_and_ends_it(db, waiter):
    waiters = [waiter("orders"), waiter(), waiter("orders"), waiter(call=True)]
    since = time.monotonic()
    db.execute("SET lock_timeout = '1s'")
    db.execute("DROP EXTENSION outbox")
    assert time.monotonic() - since < AT_ONCE
    assert {waiting.result(since).sqlstate for waiting in waiters} == {"55000"}
    db.execute("CREATE EXTENSION outbox")
    waiting = waiter("orders")
    append(db)
    assert len(waiting.result(time.monotonic(), PROMPT)) == 1


def test_a_second_create_extension_meanwhile_goes_on_there(db, waiter):
    waiters = [waiter("orders", batch_size=1) for _ in range(3)]
    since = time.monotonic()
    with db.transaction():
        db.execute("DROP EXTENSION outbox")
        db.execute("CREATE EXTENSION outbox")
    messages = [append(db) for _ in waiters]
    got = [m.id for waiting in waiters for m in waiting.result(since)]
    assert sorted(got) == sorted(messages)


def test_drop_database_is_refused_or_ends_it(server):
    server.createdb("dropped", extension="outbox")
    waiting = Waiter(server, "dropped")
    with server.connect(autocommit=True) as db:
        with pytest.raises(psycopg.errors.ObjectInUse):
            db.execute("DROP DATABASE dropped")
        since = time.monotonic()
        db.execute("DROP DATABASE dropped WITH (FORCE)")
    assert waiting.result(since, AT_ONCE).sqlstate == "57P01"


def test_after_a_waiter_was_killed_and_the_server_restarted_all_is_well(server, database, db, waiter):
    waiters = [waiter("orders") for _ in range(3)]
    os.kill(waiters[1].pid, signal.SIGKILL)
    for waiting in waiters:
        waiting.result(time.monotonic(), 10)

    def is_back():
        with contextlib.suppress(psycopg.OperationalError):
            return server.connect(database, autocommit=True)

    with until(is_back) as db:
        waiting = Waiter(server, database, "orders")
        message = append(db)
        assert [m.id for m in waiting.result(time.monotonic(), PROMPT)] == [message]


def test_a_fast_shutdown_ends_it_at_once(server, waiter):
    """Last in this file: it stops the server."""
    waiters = [waiter(call=number % 2 == 0) for number in range(20)]
    since = time.monotonic()
    server.stop("fast")
    assert time.monotonic() - since < 5
    assert {waiting.result(since, 5).sqlstate for waiting in waiters} == {"57P01"}
    server.start()
