"""What operators do to a topic is seen at once: by claims that are asleep, by claims that start where the last look found
nothing left, and by dead messages in great number.
"""

import threading
import time

import pytest
from conftest import append, claim, one, value
from floor_in_use import append_many, connect, held, ids, just_swept, other, touched, wear  # noqa: F401

CONF = {"max_prepared_transactions": 4, "autovacuum": False}
CHEAP = 64  # pages


def wear_others(db):
    for _ in range(3):
        wear(db, topic="others")


@pytest.mark.parametrize("topic", ["orders", None])
def test_a_resumed_topic_is_found_below_the_floor(db, other, topic):  # noqa: F811
    """Ready, due, and given back: all of it lies below what claims on any topic have passed meanwhile."""
    wear(db)
    wear(db, delay=0.5)
    first = append(db)
    (leased,) = claim(db, "orders")
    waiting = append(db, available_at="2100-01-01")
    db.execute("UPDATE outbox.delivery SET available_at = clock_timestamp() WHERE place = 'w'")
    ready = append(db)
    assert value(db, "pause", "orders")
    assert value(db, "release", leased.token)
    wear_others(db)
    assert claim(other, "orders") == claim(other) == []
    just_swept(db, None)
    assert claim(other, topic) == []
    assert value(db, "resume", "orders")
    assert ids(claim(other, topic)) == [first, waiting, ready]


def test_messages_of_a_paused_topic_cost_other_claims_nothing(db, other):  # noqa: F811
    value(db, "pause", "paused")
    append_many(db, 5_000, "paused")
    append_many(db, 5_000, "paused", available_at="2100-01-01T00:00:00Z")
    db.execute("UPDATE outbox.delivery SET available_at = clock_timestamp() WHERE place = 'w'")
    claim(other, "nothing")  # a new session reads the catalog first
    just_swept(db, None)
    assert touched(other, None) < CHEAP
    message = append(db)
    assert ids(claim(other)) == [message]
    assert value(db, "resume", "paused")
    assert len(claim(other, batch_size=500)) == 500


def test_a_resume_that_rolls_back_or_was_prepared(db, other):  # noqa: F811
    message = append(db)
    value(db, "pause", "orders")
    wear_others(db)
    just_swept(db, None)
    other.execute("BEGIN")
    assert value(other, "resume", "orders")
    other.execute("ROLLBACK")
    assert claim(db) == []
    other.execute("BEGIN")
    assert value(other, "resume", "orders")
    other.execute("PREPARE TRANSACTION 'resume'")
    assert claim(db) == []
    other.execute("COMMIT PREPARED 'resume'")
    assert ids(claim(db, wait_seconds=10)) == [message]  # the sweep finds it


def test_a_raised_limit_is_seen_below_the_floor(db, other):  # noqa: F811
    """More messages have died than claims have recorded; the others were passed."""
    value(db, "set_topic", "orders", '{"max_attempts": 1}')
    append_many(db, 3_000)
    while claim(db, "orders", batch_size=500, lease_seconds=1):
        pass
    wear_others(db)
    time.sleep(1.1)
    just_swept(db, None)
    value(db, "set_topic", "orders", '{"max_attempts": 2}')
    assert len(claim(other, batch_size=500)) == 500


@pytest.mark.parametrize("topic", ["orders", None])
def test_a_claim_that_is_asleep_wakes_up(server, database, db, topic):
    message = append(db)
    value(db, "pause", "orders")
    with server.connect(database, autocommit=True) as worker:
        got = []
        waiting = threading.Thread(target=lambda: got.extend(claim(worker, topic, wait_seconds=30)))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive() and not got
        resumed = time.monotonic()
        value(db, "resume", "orders")
        waiting.join()
        assert ids(got) == [message]
        assert time.monotonic() - resumed < 3


def test_a_hundred_thousand_dead_messages(server, database, db):
    """Revived in one call, in bounded memory, while another session goes on claiming; of one type, and the rest."""
    for number in range(10):
        append_many(db, 10_000, type="odd" if number % 2 else "even")
    db.execute("UPDATE outbox.delivery SET place = 'x', attempts = 8, ended_at = clock_timestamp()")
    assert claim(db) == []
    assert value(db, "redrive", "orders", dry_run=True) == 100_000
    assert value(db, "redrive", "orders", "odd", 10, True) == 10
    with server.connect(database, autocommit=True) as operator:
        assert value(operator, "redrive", "orders", max_messages=10) == 10
        before = memory(operator)
        assert value(operator, "redrive", "orders", "odd") == 50_000
        assert claim(db, "orders", batch_size=1)[0].attempts == 1
        assert value(operator, "redrive", "orders", max_messages=20_000) == 20_000
        assert value(operator, "redrive", "orders") == 29_990
        assert memory(operator) - before < 20_000, "kB"
    assert len(claim(db, "orders", batch_size=500)) == 500


def memory(connection):
    """What a session has ever had mapped at once, in kB; shared memory is always part of it."""
    status = one(connection, "SELECT pg_read_file('/proc/self/status')")
    return int(status.split("VmPeak:")[1].split()[0])
