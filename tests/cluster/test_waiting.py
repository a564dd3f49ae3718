"""claim(wait_seconds) and CALL wait: they return as soon as something becomes claimable, however that comes about, empty
when the time is up, and at once when they are cancelled, terminated, timed out or shut down. One message wakes one
session, and nobody's wait holds up anybody.

A session that waits looks again within a second whatever happens, so what is to prove that it was woken, or has slept
to the right moment, must come sooner: PROMPT.
"""

import time

import pytest
from conftest import append, claim, one, rows, value
from waiter import BATCH, CONF, PROMPT, SOON, waiter


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
def test_a_waiting_session_is_woken_by_the_commit(server, database, waiter, function, topic):
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
def test_messages_that_no_session_announces_are_noticed_soon(server, database, db, waiter, topic):
    with server.connect(database, autocommit=True) as producer:
        producer.execute("BEGIN")
        message = append(producer)
        producer.execute("PREPARE TRANSACTION 'waiting'")
    waiting = waiter(topic)
    since = time.monotonic()
    db.execute("COMMIT PREPARED 'waiting'")
    assert [m.id for m in waiting.result(since)] == [message]


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
