"""One message wakes one session, whatever the others do."""

import contextlib
import random
import threading
import time

import psycopg
import pytest
from conftest import append, check_storage, claim, one, rows, until, value
from waiter import BATCH, CONF, PROMPT, Waiter, waiter


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


def test_another_topic_or_database_wakes_no_session(server, db, waiter):
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
