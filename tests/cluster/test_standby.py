"""The primary only: on a standby and in a read-only transaction every writing function raises 25006 before it touches
anything, while the view can be read. After promotion everything goes on where the primary was: tokens count, the
background worker, which kept still until then, starts.
"""

import pytest
from conftest import CALLS, append, claim, long_ago, one, rows, sqlstate, states, until, value
from server import Server

CONF = {"shared_preload_libraries": "outbox", "outbox.purge_interval_seconds": 1, "hot_standby_feedback": True}
LAUNCHERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox launcher'"


@pytest.fixture(scope="module")
def standby(server):
    server.createdb("app", extension="outbox")
    with server.connect("app", autocommit=True) as db:
        append(db)
    standby = server.standby()
    standby.catch_up()
    yield standby
    standby.close()


def test_no_test_forgets_a_function(server, standby):
    functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"
    assert set(server.psql(functions, "app").split()) >= set(CALLS)


@pytest.mark.parametrize("function", CALLS)
def test_writing_on_a_standby_is_25006(standby, function):
    with standby.connect("app", autocommit=True) as db:
        assert sqlstate(db, function, *CALLS[function]) == "25006"
        with db.transaction(force_rollback=True):
            assert sqlstate(db, function, *CALLS[function]) == "25006"


@pytest.mark.parametrize("function", CALLS)
def test_writing_in_a_read_only_transaction_is_25006(server, standby, function):
    with server.connect("app", autocommit=True) as db:
        before = states(db), one(db, "SELECT last_value FROM outbox.arrival")
        db.execute("BEGIN READ ONLY")
        assert sqlstate(db, function, *CALLS[function]) == "25006"
        db.execute("ROLLBACK")
        db.execute("SET default_transaction_read_only = on")
        assert sqlstate(db, function, *CALLS[function]) == "25006"
        assert (states(db), one(db, "SELECT last_value FROM outbox.arrival")) == before


def test_a_waiting_claim_on_a_standby_does_not_wait(standby):
    with standby.connect("app", autocommit=True) as db:
        db.execute("SET statement_timeout = '2s'")
        assert sqlstate(db, "claim", "w", wait_seconds=30) == "25006"


def test_the_view_can_be_read_on_a_standby(server, standby):
    with server.connect("app", autocommit=True) as db, standby.connect("app", autocommit=True) as copy:
        append(db, topic="read")
        claim(db, "read")
        standby.catch_up()
        everything = "SELECT * FROM outbox.message ORDER BY id"
        assert copy.execute(everything).fetchall() == db.execute(everything).fetchall()
        copy.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        assert len(states(copy)) == len(states(db))


def test_promotion_goes_on_where_the_primary_was():
    """With a cluster of its own, since it ends the pair."""
    with Server(conf=CONF) as primary:
        primary.createdb("app", extension="outbox")
        with primary.connect("app", autocommit=True) as db:
            ids = [append(db, payload=str(n)) for n in range(5)]
            done, held, failed, open_, ready = ids
            leases = {m.id: m for m in claim(db, batch_size=3)}
            assert value(db, "complete", leases[done].token)
            assert value(db, "fail", leases[failed].token, "no", "2100-01-01") == "waiting"
            assert value(db, "consume_once", "mail", done)
        with primary.standby() as standby:
            lost = primary.connect("app")
            assert [m.id for m in claim(lost, batch_size=1)] == [open_]  # never commits
            standby.catch_up()
            assert one(db := standby.connect("app", autocommit=True), LAUNCHERS) == 0
            primary.stop("immediate")
            lost.close()
            standby.promote()
            until(lambda: one(db, LAUNCHERS) == 1)
            assert states(db) == dict(zip(ids, ("delivered", "leased", "waiting", "ready", "ready")))
            assert value(db, "complete", leases[held].token)
            assert not value(db, "complete", leases[done].token)
            assert not value(db, "consume_once", "mail", done)
            new = append(db)
            assert append(db, id=done) == done
            assert [(m.id, m.attempts) for m in claim(db)] == [(open_, 1), (ready, 1), (new, 1)]
            rows(db, "append_batch", "orders", '[{"type": "t", "payload": 1}, {"type": "t", "payload": 2}]')
            assert len(claim(db)) == 2
            long_ago(db)
            until(lambda: done not in states(db))
            db.close()
