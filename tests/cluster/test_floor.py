"""A claim starts where the last look found nothing left; that never hides a message. Whatever makes an older message
claimable after younger ones have been delivered is seen by the next claim, or soon where nobody can tell.
"""

import contextlib
import json
import time

import pytest
from conftest import append, claim, one, rows, states, until, value

CONF = {"max_prepared_transactions": 4, "max_connections": 120}
SOON = 5  # seconds, for what no session could announce


def flow(db, topic="orders", count=5):
    """Younger messages come and go: whatever remembers where to start has moved on."""
    for n in range(count):
        append(db, topic, str(n))
        for message in claim(db, topic):
            assert value(db, "complete", message.token)
    assert claim(db, topic) == claim(db) == []


def taken(db):
    """An old message in a worker's hands, much younger ones delivered."""
    append(db)
    (message,) = claim(db)
    flow(db)
    return message


def release(db, message):
    assert value(db, "release", message.token)


def fail(db, message):
    assert value(db, "fail", message.token, "no", "2020-01-01") == "waiting"


def revive(db, message):
    assert value(db, "abandon", message.token)
    flow(db)
    assert value(db, "retry_dead", message.id)


def release_in_a_subtransaction(db, message):
    with db.transaction(), db.transaction():
        release(db, message)


def release_prepared(db, message):
    db.execute("BEGIN")
    release(db, message)
    db.execute("PREPARE TRANSACTION 'outbox_floor'")
    flow(db)
    db.execute("COMMIT PREPARED 'outbox_floor'")


@pytest.mark.parametrize("topic", ["orders", None])
@pytest.mark.parametrize("give_back", [release, fail, revive, release_in_a_subtransaction], ids=lambda f: f.__name__)
def test_a_returned_message_is_claimed_next(server, database, db, give_back, topic):
    with server.connect(database, autocommit=True) as other:
        message = taken(db)
        give_back(other, message)
        young = append(db)
        assert [m.id for m in claim(db, topic)] == [message.id, young]


@pytest.mark.parametrize("topic", ["orders", None])
def test_a_rolled_back_claim_is_claimed_next(server, database, db, topic):
    for savepoint in False, True:
        with server.connect(database, autocommit=True) as other, contextlib.ExitStack() as outer:
            if savepoint:
                outer.enter_context(other.transaction())
            message = append(db)
            with other.transaction(force_rollback=True):
                assert [m.id for m in claim(other)] == [message]
                flow(other, "orders", 2)
                flow(db)
            (again,) = claim(db, topic)
            assert (again.id, again.attempts) == (message, 1)
            assert value(db, "complete", again.token)


def test_an_answer_that_is_rolled_back_leaves_the_lease_to_run_out(server, database, db):
    append(db)
    (message,) = claim(db, lease_seconds=1)
    with server.connect(database) as other:
        assert value(other, "complete", message.token)
        flow(db)
        other.rollback()
    (again,) = claim(db, "orders", wait_seconds=SOON)
    assert (again.id, again.attempts) == (message.id, 2)


def test_a_lease_that_runs_out_is_claimed_when_it_has(db):
    append(db)
    (message,) = claim(db, lease_seconds=1)
    flow(db)
    (again,) = claim(db, "orders", wait_seconds=SOON)
    late = one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)", message.leased_until)
    assert again.id == message.id and 0 <= late < 1


def test_an_extended_lease_that_runs_out_is_claimed_when_it_has(db):
    append(db)
    (message,) = claim(db, lease_seconds=600)
    flow(db)
    until_then = value(db, "extend", message.token, 1)  # shorter than it was
    (again,) = claim(db, "orders", wait_seconds=SOON)
    late = one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)", until_then)
    assert again.id == message.id and 0 <= late < 1


def test_a_delayed_message_is_claimed_when_it_is_due(db):
    due = one(db, "SELECT clock_timestamp() + interval '1 second'")
    message = append(db, available_at=due)
    flow(db)
    (got,) = claim(db, "orders", wait_seconds=SOON)
    assert got.id == message
    assert 0 <= one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)", due) < 1


@pytest.mark.parametrize("age", [0, 2.5])
def test_a_late_commit_is_claimed_next_or_soon(server, database, db, age):
    with server.connect(database) as late:
        old = append(late)
        started = time.monotonic()
        flow(db)
        while time.monotonic() - started < age:
            flow(db)
            time.sleep(0.1)
        late.commit()
    (got,) = claim(db, "orders", wait_seconds=0 if age == 0 else SOON)
    assert got.id == old


def test_a_late_commit_of_a_batch_and_of_a_savepoint(server, database, db):
    with server.connect(database, autocommit=True) as late:
        with late.transaction():
            with late.transaction(force_rollback=True):
                append(late)
            flow(db)
            with late.transaction():
                rows(late, "append_batch", "orders", json.dumps([{"type": "t", "payload": n} for n in range(3)]))
            flow(db)
        assert [m.payload for m in claim(db, "orders")] == [0, 1, 2]


def test_a_prepared_transaction_that_commits_late_is_found_soon(server, database, db):
    for pause in 0, 2:
        with server.connect(database, autocommit=True) as late:
            late.execute("BEGIN")
            old = append(late)
            late.execute("PREPARE TRANSACTION 'outbox_floor'")
        flow(db)
        time.sleep(pause)
        flow(db)
        db.execute("COMMIT PREPARED 'outbox_floor'")
        (got,) = claim(db, "orders", wait_seconds=SOON)
        assert got.id == old and value(db, "complete", got.token)


def test_a_prepared_release_is_found_soon(db):
    message = taken(db)
    release_prepared(db, message)
    assert [m.id for m in claim(db, "orders", wait_seconds=SOON)] == [message.id]


def test_a_producer_that_dies_leaves_no_trace(server, database, db):
    late = server.connect(database)
    append(late)
    one(db, "SELECT pg_terminate_backend(%s, 5000)", late.info.backend_pid)
    late.close()
    flow(db)
    message = append(db)
    assert [m.id for m in claim(db, "orders")] == [message]


def test_more_topics_than_anybody_remembers(db):
    topics = [f"topic {n}" for n in range(3000)]
    for round_ in range(2):
        db.execute("SELECT count(outbox.append(t, 'placed', '1')) FROM unnest(%s::text[]) AS t", [topics])
        chosen = topics[round_::7]
        for topic in chosen:
            (message,) = claim(db, topic, batch_size=10)[:1]
            assert value(db, "complete", message.token)
    left = one(db, "SELECT count(*) FROM outbox.message WHERE state = 'ready'")
    assert sum(len(claim(db, batch_size=500)) for _ in range(20)) == left


def test_many_producers_at_once(server, database, db):
    """More open transactions than a table of any fixed size might hold."""
    with contextlib.ExitStack() as sessions:
        producers = [sessions.enter_context(server.connect(database)) for _ in range(100)]
        missing = {append(producer) for producer in producers}
        flow(db)
        for producer in reversed(producers):
            producer.commit()
            young = append(db)
            got = {message.id for message in claim(db, "orders", wait_seconds=SOON)}
            assert young in got
            missing -= got
        until(lambda: not missing or missing.difference_update(m.id for m in claim(db)), SOON)


def test_databases_do_not_share_what_they_remember(server, database, db):
    flow(db, count=50)
    server.createdb("neighbour", extension="outbox")
    with server.connect("neighbour", autocommit=True) as other:
        message = append(other)  # its number is lower than those of the first database
        assert [m.id for m in claim(other, "orders")] == [message]
    server.psql("DROP DATABASE neighbour")
    server.createdb("neighbour", extension="outbox")
    with server.connect("neighbour", autocommit=True) as other:
        message = append(other)
        assert [m.id for m in claim(other, "orders")] == [message]
    server.psql("DROP DATABASE neighbour")


def test_restored_messages_are_found_soon(server, database, db):
    """Old numbers come back into a database that has been worked in."""
    old = [append(db, payload=str(n)) for n in range(3)]
    dump = server.folder("old numbers") / "it"
    server.as_user("pg_dump", "--data-only", "-f", dump, database)
    for message in claim(db):
        assert value(db, "complete", message.token)
    flow(db, count=20)
    db.execute("TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic")
    server.as_user("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", dump)
    assert states(db) == dict.fromkeys(old, "ready")
    assert [m.id for m in claim(db, "orders", wait_seconds=SOON)] == old


def test_after_drop_and_create_extension_numbers_start_again(db):
    flow(db, count=50)
    db.execute("DROP EXTENSION outbox")
    db.execute("CREATE EXTENSION outbox")
    message = append(db)
    assert [m.id for m in claim(db, "orders", wait_seconds=SOON)] == [message]
