"""What the tests of the floor share: sessions beside a held snapshot, and what claims and reads cost."""

import contextlib
import json
from pathlib import Path

import pytest
from conftest import claim, one, rows, until, value

CONF = {"max_prepared_transactions": 4, "autovacuum": False}
TOPICS = ["orders", None]
CHEAP, EXPENSIVE = 64, 120  # pages
WALK = 2_500  # pages of a purge that walks over 30,000 deliveries, and not of one that does not
PATIENCE = 1.2  # seconds after which an open transaction holds no floor, and a little
SHARED = Path(__file__).resolve().parents[2] / "src" / "shmem" / "memory.rs"
ATTACHED = "SELECT ok FROM outbox.status WHERE name = 'shared memory'"
PINNED = 300  # survivors that the mark remembers, and more
SOON = 3  # seconds, for what no session could announce: the sweep's second, on a busy machine


@pytest.fixture
def held(server, database):
    """The snapshot of a report that runs on and on: nothing that is over can be removed."""
    with contextlib.closing(server.connect(database)) as holder:
        hold(holder)
        yield


@pytest.fixture
def other(server, database, held):
    with server.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def connect(server, database, held):
    """More sessions. What they have not committed in the end is rolled back."""
    with contextlib.ExitStack() as sessions:
        yield lambda: sessions.enter_context(contextlib.closing(server.connect(database)))


def hold(connection):
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT 1")


def wear(db, topic="orders", count=8_000, delay=None):
    """Messages come and go. With a delay they wait first, and wear out what is known of waiting ones too."""
    due = clock(db, seconds=delay) if delay else None
    pin(db)
    append_many(db, count, topic, available_at=due and due.isoformat())
    until(lambda: not due or clock(db) > due)
    while tokens := [lease.token for lease in claim(db, topic, batch_size=500)]:
        assert all(answer.completed for answer in rows(db, "complete_batch", tokens))


def pin(db):
    """More old leases than the low-water mark passes, so that looks from the beginning stay expensive."""
    if not one(db, "SELECT count(*) FROM outbox.message WHERE topic = 'pin'"):
        append_many(db, PINNED, "pin")
        assert len(claim(db, "pin", batch_size=500, lease_seconds=43_200)) == PINNED


def append_many(db, count, topic="orders", **given):
    rows(db, "append_batch", topic, json.dumps([{"type": "t", "payload": 1, **given}] * count))


def touched(db, topic):
    """Pages of tables and indexes that a claim touches which finds nothing."""
    plan = explained(db, "SELECT * FROM outbox.claim('worker', %s::text)", topic)
    assert plan["Actual Rows"] == 0
    return pages(plan)


def explained(db, query, *arguments):
    return one(db, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + query, *arguments)[0]["Plan"]


def pages(plan):
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def just_swept(db, topic):
    """A look from the beginning is expensive, and the next one does not start there."""
    until(lambda: touched(db, topic) > EXPENSIVE and touched(db, topic) < CHEAP)


def ids(messages):
    return [message.id for message in messages]


def clock(db, seconds=0):
    return one(db, "SELECT clock_timestamp() + make_interval(secs => %s)", seconds)


def release(db, token, id):
    assert value(db, "release", token)


def fail(db, token, id):
    assert value(db, "fail", token, "no", "2020-01-01") == "waiting"


def lateness(db, due):
    seconds = one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)::float8", due)
    assert seconds > 0
    return seconds


def prepared(session, function, **named):
    answer = function(session, **named)
    session.execute("PREPARE TRANSACTION 'floor'")
    return answer
