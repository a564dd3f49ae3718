"""claim(wait_seconds) and CALL wait: they return as soon as something becomes claimable, however that comes about, empty
when the time is up, and at once when they are cancelled, terminated, timed out or shut down. One message wakes one
session, and nobody's wait holds up anybody.

A session that waits looks again within a second whatever happens, so what is to prove that it was woken, or has slept
to the right moment, must come sooner: PROMPT.
"""

import contextlib
import os
import random
import signal
import socket
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from conftest import append, check_storage, claim, one, rows, until, value

CONF = {"max_connections": 150, "max_prepared_transactions": 4}
SOON = 3  # seconds; far less than the wait, more than any pause of a busy machine
AT_ONCE = 1
PROMPT = 0.5


class Waiter(threading.Thread):
    """A session that waits inside claim(wait_seconds => 30), or inside CALL wait."""

    def __init__(self, server, database, topic=None, prepare=(), call=False, **named):
        super().__init__(daemon=True)
        self.call = call
        self.connection = server.connect(database, autocommit=True)
        for statement in prepare:
            self.connection.execute(statement)
        self.pid = self.connection.info.backend_pid
        self.topic, self.named = topic, {"wait_seconds": 30, **named}
        self.messages = self.error = None
        self.start()
        waits = (
            f"SELECT count(*) FROM pg_stat_activity WHERE pid = {self.pid} AND state = 'active'"
            " AND query LIKE '%wait_seconds%' AND wait_event_type = 'Extension'"
        )
        until(lambda: server.psql(waits) == "1" or not self.is_alive())

    def run(self):
        try:
            if self.call:
                self.messages = rows(self.connection, "wait", self.topic, **self.named)
            else:
                self.messages = claim(self.connection, self.topic, owner="waiter", **self.named)
        except psycopg.Error as error:
            self.error = error
        self.ended = time.monotonic()

    def wakeups(self):
        """How often the session's process has gone to sleep."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    def result(self, since, within=SOON):
        """The messages or the error, which came at most so long after `since`."""
        self.join(timeout=40)
        assert not self.is_alive()
        assert self.ended - since < within
        self.connection.close()
        return self.error if self.error is not None else self.messages


BATCH = '[{"type": "t", "payload": 1}]'


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


def resume(db):
    assert value(db, "pause", "orders")
    yield
    assert value(db, "resume", "orders")


def redrive(db):
    (message,) = claim(db)
    assert value(db, "abandon", message.token)
    yield
    assert value(db, "redrive", "orders") == 1


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


EVENTS = [release, fail_and_retry, retry_dead, redrive, resume, roll_back_a_claim, roll_back_a_claim_to_a_savepoint]


@pytest.mark.parametrize("event", [*EVENTS, roll_back_an_answer, come_due, run_out], ids=lambda event: event.__name__)
@pytest.mark.parametrize("topic", ["orders", None])
def test_whatever_makes_a_message_claimable_ends_the_wait(db, waiter, event, topic):
    message = append(db)
    steps = event(db)
    next(steps)
    waiting = waiter(topic)
    since = time.monotonic()
    next(steps, None)
    assert [m.id for m in waiting.result(since, PROMPT if event in EVENTS else SOON)] == [message]


@pytest.mark.parametrize("function", ["append", "append_batch"])
@pytest.mark.parametrize("topic", ["orders", None])
def test_whoever_waits_is_woken_by_the_commit(server, database, waiter, function, topic):
    waiting = waiter(topic)
    with server.connect(database) as producer:
        rows(producer, function, *{"append": ("orders", "t", "1"), "append_batch": ("orders", BATCH)}[function])
        since = time.monotonic()
        producer.commit()
    assert [m.payload for m in waiting.result(since, PROMPT)] == [1]


def test_a_transaction_that_was_open_for_long_wakes_like_any_other(server, database, db, waiter):
    with server.connect(database) as producer:
        old = append(producer)
        time.sleep(1.5)
        append(db)
        assert len(claim(db)) == 1
        waiting = waiter("orders")
        since = time.monotonic()
        producer.commit()
    assert [m.id for m in waiting.result(since, PROMPT)] == [old]


@pytest.mark.parametrize("answer", ["complete", "abandon"])
@pytest.mark.parametrize("topic", ["orders", None])
def test_the_next_message_of_a_key_wakes_when_the_one_before_is_over(db, waiter, topic, answer):
    messages = [append(db, key="customer 7") for _ in range(2)]
    (lease,) = claim(db, batch_size=1)
    assert claim(db) == []  # the second one is parked
    waiting = waiter(topic)
    since = time.monotonic()
    assert value(db, answer, lease.token)
    assert [m.id for m in waiting.result(since, PROMPT)] == messages[1:]


@pytest.mark.parametrize("topic", ["orders", None])
def test_what_nobody_can_announce_is_noticed_soon(server, database, db, waiter, topic):
    with server.connect(database, autocommit=True) as producer:
        producer.execute("BEGIN")
        message = append(producer)
        producer.execute("PREPARE TRANSACTION 'waiting'")
    waiting = waiter(topic)
    since = time.monotonic()
    db.execute("COMMIT PREPARED 'waiting'")
    assert [m.id for m in waiting.result(since)] == [message]


# -- the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", None])
def test_it_sleeps_to_the_moment_a_message_is_due(db, waiter, topic):
    due = one(db, "SELECT clock_timestamp() + interval '1.3 s'")
    message = append(db, available_at=due)
    waiting = waiter(topic)
    assert [m.id for m in waiting.result(time.monotonic())] == [message]
    assert_promptly_after(due, waiting.messages[0], db)


@pytest.mark.parametrize("topic", ["orders", None])
def test_it_sleeps_to_the_moment_a_lease_ends(db, waiter, topic):
    message = append(db)
    (lease,) = claim(db, lease_seconds=2)
    waiting = waiter(topic)
    assert [m.id for m in waiting.result(time.monotonic())] == [message]
    assert_promptly_after(lease.leased_until, waiting.messages[0], db)


# What comes before the session that waits looks again by itself, it must be told.


@pytest.mark.parametrize("topic", ["orders", None])
def test_it_hears_of_a_message_that_is_due_earlier(db, waiter, topic):
    waiting = waiter(topic)
    due = one(db, "SELECT clock_timestamp() + interval '0.3 s'")
    append(db, available_at=one(db, "SELECT %s::timestamptz + interval '1 day'", due))
    message = append(db, available_at=due)
    assert [m.id for m in waiting.result(time.monotonic())] == [message]
    assert_promptly_after(due, waiting.messages[0], db)


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("topic", ["orders", None])
def test_it_hears_of_a_lease_that_ends_earlier(server, database, db, waiter, topic, extended):
    message = append(db)
    (lease,) = claim(db, lease_seconds=600) if extended else [None]
    with server.connect(database) as worker:
        end = value(worker, "extend", lease.token, 1) if extended else claim(worker, lease_seconds=1)[0].leased_until
        time.sleep(0.5)
        waiting = waiter(topic)
        worker.commit()
    assert [m.id for m in waiting.result(time.monotonic())] == [message]
    assert_promptly_after(end, waiting.messages[0], db)


def assert_promptly_after(time_, message, db):
    """It was leased at most so long after."""
    late = one(db, "SELECT extract(epoch FROM %s - interval '60 s' - %s)::float8", message.leased_until, time_)
    assert 0 <= late < PROMPT / 2


def test_the_clock_is_kept_by_one_and_by_another_when_that_one_goes(server, database, db, waiter):
    due = one(db, "SELECT clock_timestamp() + interval '5.3 s'")
    message = append(db, available_at=due)
    waiters = [waiter("orders", wait_seconds=10) for _ in range(5)]
    for gone in waiters[0], waiters[4]:
        assert one(db, "SELECT pg_terminate_backend(%s)", gone.pid)
        assert gone.result(time.monotonic()).sqlstate == "57P01"
        waiters.remove(gone)
    got = [m for w in waiters for m in w.result(time.monotonic(), 12)]
    assert [m.id for m in got] == [message]
    assert_promptly_after(due, got[0], db)


# -- one for one -----------------------------------------------------------------------------


def test_one_message_wakes_one_session(db, waiter):
    """Of the others at most the one that keeps the clock has woken."""
    waiters = [waiter("orders", batch_size=1) for _ in range(8)]
    time.sleep(0.1)
    before = [w.wakeups() for w in waiters]
    append(db)
    until(lambda: not all(w.is_alive() for w in waiters))
    time.sleep(0.1)
    alive = [(w.wakeups() - n) for w, n in zip(waiters, before) if w.is_alive()]
    assert len(alive) == 7
    assert len([n for n in alive if n]) <= 1
    for _ in range(7):
        append(db)
    assert sum(len(w.result(time.monotonic())) for w in waiters) == 8


def test_several_messages_wake_as_many_as_it_takes(db, waiter):
    """Whoever is woken and leaves something wakes the next."""
    waiters = [waiter("orders", batch_size=2) for _ in range(4)]
    since = time.monotonic()
    rows(db, "append_batch", "orders", BATCH.replace("]", "") + 6 * ', {"type": "t", "payload": 1}' + "]")
    assert sorted(len(w.result(since, PROMPT)) for w in waiters) == [1, 2, 2, 2]


def test_another_topic_or_database_wakes_nobody(server, db, waiter):
    server.createdb("neighbour", extension="outbox")
    waiters = [waiter("orders", batch_size=1) for _ in range(3)]
    neighbours = [Waiter(server, "neighbour", "orders", batch_size=1) for _ in range(3)]
    with server.connect("neighbour", autocommit=True) as there:
        time.sleep(0.1)
        before = [w.wakeups() for w in waiters + neighbours]
        started = time.monotonic()
        for n in range(200):
            append(db, topic="other")
            append(there, topic="other")
        append(there)
        neighbours_got = until(lambda: [w for w in neighbours if not w.is_alive()])
        seconds = time.monotonic() - started
        woken = [w.wakeups() - n for w, n in zip(waiters, before)]
        assert sum(woken) <= seconds + 1  # the clock's
        assert len(neighbours_got) == 1
        append(there)
        append(there)
    assert sum(len(w.result(time.monotonic())) for w in neighbours) == 3
    for _ in waiters:
        append(db)
    assert sum(len(w.result(time.monotonic())) for w in waiters) == 3
    server.psql("DROP DATABASE neighbour")


def test_fifty_workers_and_one_message_at_a_time(server, database, db):
    """Each is delivered once, at three looks at most."""
    count, got, calls = 100, [], []
    done = threading.Event()

    def work(connection):
        while not done.is_set():
            calls.append(1)
            for message in claim(connection, "orders", wait_seconds=5):
                got.append(message.id)
                assert value(connection, "complete", message.token)

    with contextlib.ExitStack() as sessions:
        workers = [sessions.enter_context(server.connect(database, autocommit=True)) for _ in range(50)]
        threads = [threading.Thread(target=work, args=[worker], daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_ready'"
        sent = []
        for _ in range(count):
            sent.append(append(db))
            until(lambda: len(got) == len(sent))
        done.set()
        for thread in threads:
            thread.join()
        time.sleep(1.1)  # what a session has counted it reports once a second
        for worker in workers:
            worker.execute("SELECT 1")
    assert sorted(got) == sorted(sent)
    # a call looks once, enters and looks again; what is more, it was woken for
    until(lambda: one(db, looks) > 2 * count)
    assert one(db, looks) - 2 * len(calls) <= 3 * count


@pytest.mark.parametrize("seconds", [10])
def test_no_call_is_lost_among_cancels_rollbacks_and_ends(server, database, db, seed, seconds):
    """Workers that wait, some cancelled, some that roll back; a message that nobody is woken for would take a second."""
    random_ = random.Random(seed)
    delivered, done = {}, threading.Event()

    def work(number):
        random_ = random.Random(seed + number)
        topic = random_.choice(["orders", "mail", None])
        with server.connect(database, autocommit=True) as connection:
            pids.append(connection.info.backend_pid)
            while not done.is_set():
                with contextlib.suppress(psycopg.errors.QueryCanceled):
                    batch = random_.choice([1, 3, 50])
                    with connection.transaction(force_rollback=random_.random() < 0.1) as transaction:
                        messages = claim(connection, topic, wait_seconds=random_.choice([1, 5]), batch_size=batch)
                        now = time.monotonic()
                        if messages and not transaction.force_rollback:
                            rows(connection, "complete_batch", [message.token for message in messages])
                            delivered.update((message.id, now) for message in messages)

    pids, sent = [], {}
    threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(12)]
    for thread in threads:
        thread.start()
    until(lambda: len(pids) == len(threads))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(random_.choice([0, 0.002, 0.02]))
        if random_.random() < 0.2:
            one(db, "SELECT pg_cancel_backend(%s)", random_.choice(pids))
        sent[append(db, topic=random_.choice(["orders", "mail"]))] = time.monotonic()
    until(lambda: len(delivered) == len(sent))
    done.set()
    for thread in threads:
        thread.join()
    late = [delivered[message] - when for message, when in sent.items()]
    assert len([seconds for seconds in late if seconds > 0.7]) <= len(late) / 100
    check_storage(db)


# -- the rest --------------------------------------------------------------------------------


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


def test_the_procedure_waits_for_what_others_hold(server, database, db, waiter):
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


def test_whoever_is_woken_by_the_procedure_and_does_not_claim_leaves_it_to_others(db, waiter):
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


def test_create_extension_anew_meanwhile_goes_on_there(db, waiter):
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
