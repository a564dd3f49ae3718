"""Without shared_preload_libraries everything works except the background worker, which does not exist."""

import uuid

import psycopg
import pytest
from conftest import append, claim, long_ago, one, states, value


def test_a_life_of_a_message(db):
    delivered, given_back, dead = (append(db, payload=str(n)) for n in range(3))
    first, second, third = claim(db, "orders", lease_seconds=30)
    assert value(db, "complete", first.token)
    assert value(db, "extend", second.token, 60) > second.leased_until
    assert value(db, "release", second.token)
    assert value(db, "fail", third.token, "no", "2020-01-01") == "waiting"
    again = {message.id: message for message in claim(db)}
    assert [m.attempts for m in again.values()] == [1, 2]
    assert value(db, "abandon", again[dead].token, "never")
    assert states(db) == {delivered: "delivered", given_back: "leased", dead: "dead"}
    assert value(db, "retry_dead", dead)
    assert value(db, "consume_once", "mail", delivered)
    assert not value(db, "consume_once", "mail", delivered)
    assert value(db, "purge") == 0
    long_ago(db)
    assert value(db, "purge") == 1


def test_no_process_of_the_extension_runs(db):
    append(db)
    assert one(db, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE '%%outbox%%'") == 0


def test_settings_count_once_the_library_is_loaded(server, database):
    with server.connect(database, autocommit=True) as db:
        db.execute("SET outbox.batch_size = 2")  # nothing of the extension has been called yet
        for _ in range(3):
            append(db)
        assert len(claim(db)) == 2
        with pytest.raises(psycopg.Error) as misspelt:
            db.execute("SET outbox.batchsize = 2")
        assert misspelt.value.sqlstate == "42602"
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.execute("SET outbox.batch_size = 501")


def test_views_in_a_session_without_the_library(server, database, db):
    """The view works in a session that has called no function yet."""
    db.execute("INSERT INTO outbox.topic (topic, max_attempts) VALUES ('orders', 1)")
    message = append(db)
    claim(db)
    db.execute("UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 second'")
    with server.connect(database) as fresh:
        assert states(fresh) == {message: "dead"}
        assert one(fresh, "SELECT last_error FROM outbox.message") == "lease expired"


def test_a_role_needs_no_right_on_a_table(server, database, db):
    """What grant_access() gives is EXECUTE on functions and USAGE on the schema; a function by itself is granted as usual."""
    db.execute("CREATE ROLE worker LOGIN")
    try:
        with server.connect(database, user="worker", autocommit=True) as worker:
            for function, arguments in ("append", ("t", "t", "1")), ("claim", ("w",)), ("purge", ()):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    value(worker, function, *arguments)
            for capability in "producer", "worker":
                value(db, "grant_access", "worker", capability)
            db.execute("GRANT EXECUTE ON FUNCTION outbox.purge TO worker")
            append(worker)
            append(worker, id=uuid.uuid4())
            for message in claim(worker):
                assert value(worker, "complete", message.token)
            assert value(worker, "consume_once", "mail", uuid.uuid4())
            long_ago(db)
            assert value(worker, "purge") == 2
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("SELECT * FROM outbox.message")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("SELECT * FROM outbox.envelope")
    finally:
        db.execute("DROP OWNED BY worker")
        db.execute("DROP ROLE worker")
