"""The floor where nobody can tell of a change: paused topics, prepared transactions, rows changed by hand, kills."""

import pytest
from conftest import append, claim, one, states, until, value
from floor_in_use import (
    CONF,
    SOON,
    TOPICS,
    append_many,
    clock,
    connect,
    held,
    ids,
    just_swept,
    lateness,
    other,
    prepared,
    release,
    wear,
)


def pause(db, topic, paused=True):
    db.execute(
        "INSERT INTO outbox.topic (topic, paused) VALUES (%s, %s)"
        " ON CONFLICT ON CONSTRAINT topic_pkey DO UPDATE SET paused = excluded.paused",
        [topic, paused],
    )


def test_due_messages_of_a_paused_topic_cost_claims_on_any_topic_nothing(db, held):
    """Nor does it keep them from what was due later."""
    due = clock(db, seconds=0.5).isoformat()
    append_many(db, 2_000, "paused")
    append_many(db, 2_000, "paused", available_at=due)
    delayed = append(db, available_at=clock(db, seconds=1))
    pause(db, "paused")
    wear(db, delay=1)
    assert states(db)[delayed] == "delivered"
    just_swept(db, None)
    young = append(db)
    assert ids(claim(db)) == [young]


def test_a_resumed_topic_is_delivered_soon_after(db, other):
    messages = [append(db, "paused"), append(db, "paused", available_at=clock(db, seconds=0.1))]
    pause(db, "paused")
    wear(db, delay=1)
    just_swept(db, None)
    assert claim(db, "paused") == []
    pause(other, "paused", False)
    assert ids(until(lambda: claim(db), SOON)) == messages


def test_a_resumed_topic_is_delivered_by_its_next_claim(db, other):
    wear(db, "paused")
    just_swept(db, "paused")
    messages = [append(db, "paused") for _ in range(2)]
    pause(db, "paused")
    assert claim(db) == claim(db, "paused") == []
    pause(other, "paused", False)
    assert ids(claim(db, "paused")) == messages


@pytest.mark.parametrize("topic", TOPICS)
def test_an_append_prepared_and_committed_elsewhere_is_delivered_soon(db, connect, topic):
    message = prepared(connect(), append)
    wear(db)
    just_swept(db, topic)
    db.execute("COMMIT PREPARED 'floor'")
    assert ids(until(lambda: claim(db, topic), SOON)) == [message]


@pytest.mark.parametrize("topic", TOPICS)
def test_an_append_prepared_and_rolled_back_is_never_delivered(db, connect, topic):
    prepared(connect(), append)
    wear(db)
    db.execute("ROLLBACK PREPARED 'floor'")
    just_swept(db, topic)
    young = append(db)
    assert ids(claim(db, topic)) == [young]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_claim_prepared_and_rolled_back_elsewhere_gives_its_rows_back_soon(db, connect, topic):
    wear(db)
    message = append(db)
    assert ids(prepared(connect(), claim)) == [message]
    wear(db)
    just_swept(db, topic)
    db.execute("ROLLBACK PREPARED 'floor'")
    assert ids(until(lambda: claim(db, topic), SOON)) == [message]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_claim_prepared_and_committed_elsewhere_is_a_lease_like_any_other(db, connect, topic):
    wear(db)
    message = append(db)
    (lease,) = prepared(connect(), claim, lease_seconds=1)
    wear(db)
    db.execute("COMMIT PREPARED 'floor'")
    (again,) = until(lambda: claim(db, topic), SOON)
    assert (again.id, again.attempts) == (message, 2)
    assert lateness(db, lease.leased_until) < SOON
    assert not value(db, "complete", lease.token)


@pytest.mark.parametrize("topic", TOPICS)
def test_messages_changed_by_hand_are_delivered_soon(db, other, topic):
    message = append(db)
    claim(db, lease_seconds=600)
    wear(db)
    just_swept(db, topic)
    db.execute(
        "UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 second' WHERE topic = 'orders'"
    )
    assert ids(until(lambda: claim(other, topic), SOON)) == [message]


@pytest.mark.parametrize("command", ["VACUUM FULL %s", "CLUSTER %s USING delivery_pkey", "REINDEX TABLE %s"])
def test_rewriting_the_table_loses_nothing(db, other, command):
    old = [append(db), append(db)]
    leases = claim(db, lease_seconds=600)
    wear(db)
    for topic, message, lease in zip(TOPICS, old, leases):
        just_swept(db, topic)
        db.execute(command % "outbox.delivery")
        release(other, lease.token, message)
        young = append(db)
        assert ids(claim(other, topic)) == [message, young]


@pytest.mark.parametrize("topic", TOPICS)
def test_after_truncate_old_numbers_are_delivered_soon(db, other, topic):
    wear(db)
    just_swept(db, topic)
    db.execute("TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic")
    db.execute("ALTER SEQUENCE outbox.arrival RESTART")
    for session in db, other, db, other:
        message = append(db)
        assert ids(until(lambda: claim(session, topic), SOON)) == [message]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_killed_producer_holds_nothing_and_takes_nothing_along(db, connect, topic):
    wear(db)
    killed = connect()
    append(killed)
    young = append(db)
    just_claimed = ids(claim(db, topic))
    assert one(db, "SELECT pg_terminate_backend(%s, 10000)", killed.info.backend_pid)
    assert just_claimed + ids(claim(db, topic)) == [young]
    wear(db)
    heir = connect()  # of its place in shared memory, most likely
    just_swept(db, topic)
    message = append(heir)
    young = append(db)
    assert ids(claim(db, topic)) == [young]
    heir.commit()
    assert ids(claim(db, topic)) == [message]
