"""What comes back below the floor, and claims that are rolled back: the next claim delivers it first."""

import contextlib
import time

import psycopg
import pytest
from conftest import append, claim, until, value
from floor_in_use import (
    CONF,
    PATIENCE,
    SOON,
    TOPICS,
    clock,
    connect,
    fail,
    held,
    ids,
    just_swept,
    lateness,
    other,
    release,
    wear,
)


def revive(db, token, id):
    assert value(db, "abandon", token)
    assert value(db, "retry_dead", id)


def revive_undead(db, token, id):
    """Its last lease ran out; nobody has recorded its death."""
    seq = "(SELECT seq FROM outbox.envelope WHERE id = %s)"
    db.execute(f"UPDATE outbox.delivery SET attempts = 50, leased_until = clock_timestamp() WHERE seq = {seq}", [id])
    assert value(db, "retry_dead", id)


GIVING = pytest.mark.parametrize("give_back", [release, fail, revive, revive_undead], ids=lambda f: f.__name__)


@GIVING
def test_a_returned_message_is_first_in_the_next_claim(db, other, give_back):
    old = [append(db), append(db)]
    leases = claim(db, lease_seconds=600)
    wear(db, delay=1 if give_back is fail else None)
    for topic, message, lease in zip(TOPICS, old, leases):
        just_swept(db, topic)
        give_back(other, lease.token, message)
        young = append(db)
        assert ids(claim(db, topic)) == [message, young]


@GIVING
def test_a_message_returned_in_a_transaction_counts_from_its_commit(db, connect, give_back):
    old = [append(db), append(db)]
    leases = claim(db, lease_seconds=600)
    wear(db, delay=1 if give_back is fail else None)
    for topic, message, lease in zip(TOPICS, old, leases):
        giving = connect()
        just_swept(db, topic)
        give_back(giving, lease.token, message)
        young = append(db)
        assert ids(claim(db, topic)) == [young]
        assert claim(db, topic) == []
        giving.commit()
        assert ids(claim(db, topic)) == [message]


def test_a_delayed_message_is_delivered_first_by_the_next_claim_after_it_is_due(db, held):
    due = clock(db, seconds=3)
    old = [append(db, available_at=due) for _ in TOPICS]
    wear(db, delay=1)
    young = append(db)
    until(lambda: clock(db) > due)
    got = [claim(db, topic, batch_size=1) for topic in [*TOPICS, None]]
    assert [message.id for batch in got for message in batch] == [*old, young]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_lease_that_runs_out_is_delivered_soon(db, held, topic):
    message = append(db)
    (lease,) = claim(db, lease_seconds=2)
    wear(db)
    (again,) = until(lambda: claim(db, topic))
    assert (again.id, again.attempts) == (message, 2)
    assert lateness(db, lease.leased_until) < SOON


def test_the_next_end_of_a_lease_is_known(db, held):
    """It causes a look from the beginning: without it, there would be none until a second after the last."""
    old = [append(db) for _ in range(6)]
    leases = {lease.id: lease for lease in claim(db, lease_seconds=600)}
    wear(db)
    late = {topic: [] for topic in TOPICS}
    for message, topic in zip(old, 3 * TOPICS):
        just_swept(db, topic)
        time.sleep(0.3)  # so that it ends between two looks from the beginning
        end = value(db, "extend", leases[message].token, 1)  # shorter than it was
        (again,) = until(lambda: claim(db, topic))
        assert again.id == message
        late[topic].append(lateness(db, end))
    assert max(map(min, late.values())) < 0.5


@pytest.mark.parametrize("savepoint", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_claim_rolled_back_gives_its_rows_to_the_next_claim(db, connect, topic, savepoint):
    wear(db)
    worker = connect()
    just_swept(db, topic)
    message = append(db)
    with rolled_back(worker, savepoint):
        assert ids(claim(worker, topic)) == [message]
        young = append(db)
        assert ids(claim(db, topic)) == [young]
        assert claim(db, topic) == []
    assert ids(claim(db, topic)) == [message]


@pytest.mark.parametrize("savepoint", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_claim_that_stays_open_is_passed_and_gives_back_its_rows_at_once(db, connect, topic, savepoint):
    wear(db)
    message = append(db)
    worker = connect()
    with rolled_back(worker, savepoint):
        assert ids(claim(worker)) == [message]
        wear(db)
        just_swept(db, topic)  # once the claim is old enough, it does not hold the floor
    (again,) = claim(db, topic)
    assert (again.id, again.attempts) == (message, 1)


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_young_claim_in_an_old_transaction_is_rolled_back_like_any_other(db, connect, savepoint):
    """The transaction's id is older than all that the session has to tell."""
    workers = {topic: connect() for topic in TOPICS}
    for worker in workers.values():
        worker.execute("SELECT pg_current_xact_id()")
    wear(db)
    for _ in range(3):
        time.sleep(PATIENCE)
        claim(db)
    for topic, worker in workers.items():
        just_swept(db, topic)
        message = append(db)
        with rolled_back(worker, savepoint):
            assert ids(claim(worker, topic)) == [message]
            young = append(db)
            assert ids(claim(db, topic)) == [young]
            assert claim(db, topic) == []
        assert ids(claim(db, topic)) == [message]


@contextlib.contextmanager
def rolled_back(session, savepoint):
    """The whole transaction, or a savepoint of one that stays open."""
    session.execute("SELECT 1")
    if savepoint:
        with session.transaction(force_rollback=True):
            yield
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    else:
        yield
        session.rollback()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_rollback_tells_the_others_even_if_the_catalog_has_changed_meanwhile(db, connect, topic):
    wear(db)
    message = append(db)
    worker = connect()
    assert ids(claim(worker)) == [message]
    wear(db)
    just_swept(db, topic)
    db.execute("ALTER TABLE outbox.delivery SET (fillfactor = 51)")
    worker.execute("SELECT count(*) FROM pg_class")  # takes the change in
    just_swept(db, topic)
    worker.rollback()
    assert ids(claim(db, topic)) == [message]


@pytest.mark.parametrize("topic", TOPICS)
def test_an_open_claim_of_the_oldest_message_costs_the_others_nothing(db, connect, topic):
    append(db)
    worker = connect()
    claim(worker)
    wear(db)
    just_swept(db, topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_an_open_claim_of_the_longest_due_message_costs_the_others_nothing(db, connect, topic):
    append(db, available_at=clock(db, seconds=0.1))
    time.sleep(0.2)
    worker = connect()
    assert len(claim(worker)) == 1
    wear(db, delay=1)
    just_swept(db, topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_two_claims_of_one_transaction_deliver_in_order(db, held, topic):
    """The first looks from the beginning, and finds more than it takes."""
    wear(db)
    messages = [append(db) for _ in range(3)]
    leases = claim(db, lease_seconds=600)
    wear(db)
    just_swept(db, topic)
    for lease in leases:
        end = value(db, "extend", lease.token, 1)
    young = append(db)
    until(lambda: clock(db) > end)
    with db.transaction():
        got = [*claim(db, topic, batch_size=1), *claim(db, topic, batch_size=1), *claim(db, topic, batch_size=1)]
    assert ids(got) == messages
    assert ids(claim(db, topic)) == [young]
