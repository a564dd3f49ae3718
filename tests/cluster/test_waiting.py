"""claim(wait_seconds): returns as soon as something becomes claimable, however that comes about, empty when the
time is up, and at once when it is cancelled, terminated, timed out or shut down.
"""

import os
import socket
import threading
import time
import uuid

import psycopg
import pytest
from conftest import append, claim, one, until, value

SOON = 3  # seconds; far less than the wait, more than any pause of a busy machine
AT_ONCE = 1


class Waiter(threading.Thread):
    """A session that waits inside claim(wait_seconds => 30)."""

    def __init__(self, server, database, topic=None, prepare=(), **named):
        super().__init__(daemon=True)
        self.connection = server.connect(database, autocommit=True)
        for statement in prepare:
            self.connection.execute(statement)
        self.pid = self.connection.info.backend_pid
        self.topic, self.named = topic, {"wait_seconds": 30, **named}
        self.messages = self.error = None
        self.start()
        waits = (
            f"SELECT count(*) FROM pg_stat_activity WHERE pid = {self.pid} AND state = 'active'"
            " AND query LIKE '%wait_seconds%' AND wait_event IS NOT NULL"
        )
        until(lambda: server.psql(waits) == "1" or not self.is_alive())

    def run(self):
        try:
            self.messages = claim(self.connection, self.topic, owner="waiter", **self.named)
        except psycopg.Error as error:
            self.error = error
        self.ended = time.monotonic()

    def result(self, since, within=SOON):
        """The messages or the error, which came at most so long after `since`."""
        self.join(timeout=40)
        assert not self.is_alive()
        assert self.ended - since < within
        self.connection.close()
        return self.error if self.error is not None else self.messages


@pytest.fixture
def waiter(server, database):
    return lambda *arguments, **named: Waiter(server, database, *arguments, **named)


def test_an_append_ends_the_wait_when_it_commits(server, database, waiter):
    waiting = waiter("orders")
    with server.connect(database) as producer:
        message = append(producer)
        time.sleep(0.3)
        assert waiting.is_alive()
        producer.commit()
        since = time.monotonic()
    assert [m.id for m in waiting.result(since)] == [message]


def test_an_append_that_rolls_back_or_is_for_another_topic_does_not(server, database, db, waiter):
    waiting = waiter("orders")
    with server.connect(database) as producer:
        append(producer)
        producer.rollback()
    append(db, topic="other")
    time.sleep(0.3)
    assert waiting.is_alive()
    message = append(db)
    assert [m.id for m in waiting.result(time.monotonic())] == [message]


def test_one_message_is_for_one_waiter(db, waiter):
    waiters = [waiter(wait_seconds=3) for _ in range(4)]
    message = append(db)
    got = [m.id for w in waiters for m in w.result(time.monotonic(), 5)]
    assert got == [message]


# Each takes a message out of reach, and gives it back after the yield, when the waiter waits.


def release(db):
    (message,) = claim(db)
    yield
    assert value(db, "release", message.token)


def fail_and_retry(db):
    (message,) = claim(db)
    yield
    assert value(db, "fail", message.token, "no", "2020-01-01") == "waiting"


def retry_dead(db):
    (message,) = claim(db)
    assert value(db, "abandon", message.token)
    yield
    assert value(db, "retry_dead", message.id)


def roll_back_a_claim(db):
    with db.transaction(force_rollback=True):
        assert len(claim(db)) == 1
        yield


def roll_back_a_claim_to_a_savepoint(db):
    with db.transaction():
        with db.transaction(force_rollback=True):
            assert len(claim(db)) == 1
            yield
        time.sleep(0.5)  # the waiter gets it while this transaction goes on


def roll_back_an_answer(db):
    (message,) = claim(db, lease_seconds=1)
    with db.transaction(force_rollback=True):
        assert value(db, "complete", message.token)
        yield
        time.sleep(1)


def come_due(db):
    due = one(db, "SELECT clock_timestamp() + interval '1 second'")
    assert value(db, "fail", claim(db)[0].token, "no", due) == "waiting"
    yield


def run_out(db):
    assert len(claim(db, lease_seconds=1)) == 1
    yield


@pytest.mark.parametrize(
    "event",
    [
        release, fail_and_retry, retry_dead, roll_back_a_claim, roll_back_a_claim_to_a_savepoint,
        roll_back_an_answer, come_due, run_out,
    ],
    ids=lambda event: event.__name__,
)
def test_whatever_makes_a_message_claimable_ends_the_wait(db, waiter, event):
    message = append(db)
    steps = event(db)
    next(steps)
    waiting = waiter("orders")
    since = time.monotonic()
    next(steps, None)
    assert [m.id for m in waiting.result(since)] == [message]


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
    assert waiting.is_alive()
    append(db)
    assert len(waiting.result(time.monotonic())) == 1


def test_a_fast_shutdown_ends_it_at_once(server, waiter):
    """Last in this file: it stops the server."""
    waiting = waiter()
    since = time.monotonic()
    server.stop("fast")
    assert time.monotonic() - since < 5
    assert waiting.result(since, 5).sqlstate == "57P01"
    server.start()
