"""Order by key with the bottom in use (src/bottom.rs): a claim starts at the first message that is ready or leased, and
looks for older messages of a key nowhere else.

Each test wears its topic out as those of the floor do, and sees by the scans of the index of keys that the bottom is in
use; for a second then no look from the beginning comes to the rescue. Every rule holds on the topic and on any.
"""

import contextlib
import itertools

import pytest
from conftest import append, claim, one, rows, states, until, value
from server import Server
from test_floor_in_use import CHEAP, append_many, clock, connect, held, hold, ids, just_swept, touched, wear  # noqa: F401

CONF = {"autovacuum": False}  # and no room for prepared transactions, which could not hold the bottom
TOPICS = ["orders", None]
NEW_KEY = (f"key-{n}" for n in itertools.count())
SCANS = "SELECT pg_stat_get_xact_numscans('outbox.delivery_key_ready'::regclass)"


def looks_back(db, topic):
    """How often a claim of three messages with new keys looks into the index of keys."""
    for _ in range(3):
        append(db, key=next(NEW_KEY))
    with db.transaction():
        scans = -one(db, SCANS)
        leases = claim(db, topic, batch_size=3)
        scans += one(db, SCANS)
    complete(db, leases)
    assert len(leases) == 3
    return scans


def complete(db, leases):
    assert all(answer.completed for answer in rows(db, "complete_batch", [lease.token for lease in leases]))


def keeps_back(db, oldest, youngest, worker, topic):
    """A claim finds the oldest; while it is leased, nobody finds the youngest of its key."""
    assert ids(claim(db, topic, batch_size=1)) == [oldest]
    assert claim(worker, topic) == []
    assert states(db)[youngest] == "ready"


@pytest.fixture(params=TOPICS)
def topic(request):
    return request.param


@pytest.fixture
def worn(db, connect, topic):  # noqa: F811
    """The bottom is in use, and no sweep is near."""
    wear(db)
    dive(db, topic)


def dive(db, topic):
    """At first it is not known that there are keys, then not where the bottom is."""
    just_swept(db, topic)
    until(lambda: touched(db, topic) < CHEAP and all(looks_back(db, topic) == 0 for _ in range(3)))


def test_where_transactions_may_be_prepared_it_is_not_used():
    with Server(conf={**CONF, "max_prepared_transactions": 1}) as server, contextlib.ExitStack() as sessions:
        db = sessions.enter_context(contextlib.closing(server.connect(autocommit=True)))
        db.execute("CREATE EXTENSION outbox")
        hold(sessions.enter_context(contextlib.closing(server.connect())))
        wear(db)
        just_swept(db, "orders")
        for _ in range(50):
            assert looks_back(db, "orders") > 0


def test_many_leases_of_others_make_claims_look_back(db, worn, topic):
    """Walking over them costs more."""
    append_many(db, 8_000)
    for _ in range(16):
        claim(db, topic, batch_size=500, lease_seconds=600)
    just_swept(db, topic)
    until(lambda: looks_back(db, topic) > 0)


def test_a_late_commit_comes_before_the_younger_ones(db, connect, worn, topic):  # noqa: F811
    late, worker = connect(), connect()
    oldest = append(late, key="k")
    wear(db, count=500)  # the bottom would pass it
    youngest = append(db, key="k")
    late.commit()
    keeps_back(db, oldest, youngest, worker, topic)


def test_a_rolled_back_append_holds_nothing(db, connect, worn, topic):  # noqa: F811
    late = connect()
    append(late, key="k")
    late.rollback()
    assert looks_back(db, topic) == 0


def test_one_that_failed_and_is_leased_again_keeps_the_younger_ones_back(db, connect, worn, topic):  # noqa: F811
    """It waits in another index, and comes back below the bottom."""
    oldest = append(db, key="k")
    (lease,) = claim(db, topic)
    due = clock(db, seconds=1.5)
    value(db, "fail", lease.token, "no", due)
    wear(db, count=500)
    until(lambda: clock(db) > due)
    first, second = connect(), connect()
    assert ids(claim(first, topic, batch_size=1)) == [oldest]
    youngest = append(db, key="k")
    assert claim(second, topic) == []  # the first is not committed
    first.commit()
    assert claim(second, topic) == []
    assert states(db)[youngest] == "ready"


def test_a_claim_that_is_rolled_back_puts_nothing_back(db, connect, worn, topic):  # noqa: F811
    oldest = append(db, key="k")
    (lease,) = claim(db, topic)
    value(db, "fail", lease.token, "no", clock(db))
    youngest = append(db, key="k")
    other = connect()
    claim(other, topic)
    other.rollback()
    assert ids(claim(db, topic)) == [oldest, youngest]


def test_a_savepoint_of_one_that_is_leased_again(db, connect, worn, topic):  # noqa: F811
    oldest = append(db, key="k")
    (lease,) = claim(db, topic)
    value(db, "fail", lease.token, "no", clock(db))
    youngest = append(db, key="k")
    other = connect()
    with contextlib.suppress(ZeroDivisionError), other.transaction():
        claim(other, topic)
        raise ZeroDivisionError
    assert ids(claim(other, topic, batch_size=1)) == [oldest]
    other.commit()
    assert claim(db, topic) == []
    assert states(db)[youngest] == "ready"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_revived_one_keeps_the_younger_ones_back(db, connect, worn, topic, blocks):  # noqa: F811
    value(db, "set_topic", "orders", '{"block_on_dead": %s}' % str(blocks).lower())
    oldest = append(db, key="k")
    (lease,) = claim(db, topic)
    value(db, "abandon", lease.token, "no")
    wear(db, count=500)
    other = connect()
    youngest = append(db, key="k")
    assert value(db, "retry_dead", oldest)
    keeps_back(db, oldest, youngest, other, topic)


def test_a_backend_that_is_killed_leaves_nothing_published(db, connect, worn, topic):  # noqa: F811
    victim = connect()
    append(victim, key="k")
    pid = one(victim, "SELECT pg_backend_pid()")
    one(db, "SELECT pg_terminate_backend(%s, 10000)", pid)
    wear(db, count=500)
    dive(db, topic)


def test_a_new_extension_begins_anew(db, worn, topic):
    db.execute("DROP EXTENSION outbox; CREATE EXTENSION outbox")
    oldest, youngest = append(db, key="k"), append(db, key="k")
    assert ids(claim(db, topic)) == [oldest, youngest]
