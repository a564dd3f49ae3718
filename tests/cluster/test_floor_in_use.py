"""The races of the floor, with the floor really in use: every claim starts where the last look found nothing left.

Looks start at the beginning as long as that is cheap. So each test first wears its topic out: under a held snapshot
thousands of messages come and go, and their dead index entries stay. `just_swept` then proves by the pages
that claims touch that the floor is in use, and returns right after a look from the beginning: for a second no other
one comes to the rescue of what the floor would hide. Every rule holds for claims on the topic and on any topic.
"""

import statistics
import time

import pytest
from conftest import append, claim, rows, states, until, value
from floor_in_use import (
    CHEAP,
    CONF,
    PATIENCE,
    TOPICS,
    WALK,
    append_many,
    clock,
    connect,
    explained,
    fail,
    held,
    ids,
    just_swept,
    other,
    pages,
    touched,
    wear,
)


@pytest.mark.parametrize("topic", TOPICS)
def test_finished_messages_cost_the_next_claim_nothing(db, other, topic):
    wear(db)
    claim(other, "nothing")  # a new session reads the catalog first
    just_swept(db, topic)
    assert touched(other, topic) < CHEAP  # sessions share what they know


def test_the_first_claim_of_a_topic_begins_where_claims_of_any_do(db, held):
    """What waited in the topic is over, and cannot be removed."""
    due = clock(db, seconds=1)
    append_many(db, 5_000, available_at=due.isoformat())
    until(lambda: clock(db) > due)
    while tokens := [lease.token for lease in claim(db, None, batch_size=500)]:
        rows(db, "complete_batch", tokens)
    until(lambda: all(touched(db, None) < CHEAP for _ in range(100) if not time.sleep(0.02)))  # those from the beginning too
    assert touched(db, "orders") < CHEAP


def test_ten_seconds_under_a_held_snapshot_are_flat(db, held):
    """With messages that fail and a lease that stays open, as real workers have them."""
    append(db)
    claim(db, lease_seconds=600)
    db.execute("CREATE TEMP TABLE got (token uuid) ON COMMIT DELETE ROWS")
    rounds = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < 10:
        append_many(db, 50)
        with db.transaction():
            plan = explained(db, "INSERT INTO got SELECT token FROM outbox.claim('worker', 'orders', 60)")
            tokens = [token for (token,) in db.execute("SELECT token FROM got")]
        rows(db, "complete_batch", [token for place, token in enumerate(tokens) if place % 20])
        for token in tokens[::20]:
            value(db, "fail", token, "no", clock(db, seconds=1))
        rounds.append((now, pages(plan), len(tokens)))
    assert sum(count for *_, count in rounds) > 10_000
    first, last = (
        statistics.median(pages / max(count, 1) for when, pages, count in rounds if begin <= when < begin + 2)
        for begin in (2, 8)  # from the third second on, what has failed comes back
    )
    assert last <= 1.5 * first


def test_a_series_of_purges_looks_for_deaths_once(db):
    """The first one does, and the first one after a while."""
    for _ in range(3):
        append_many(db, 10_000)
    (lease,) = claim(db, batch_size=1, lease_seconds=600)
    until(lambda: purged(db) > WALK and purged(db) < WALK)
    db.execute("UPDATE outbox.delivery SET attempts = 50, leased_until = clock_timestamp() WHERE lease <> 0")
    until(lambda: purged(db) > WALK)
    assert not value(db, "complete", lease.token)


def purged(db):
    """Pages that a purge touches which has nothing to delete."""
    return pages(explained(db, "SELECT outbox.purge()"))


@pytest.mark.parametrize("topic", TOPICS)
def test_a_message_that_commits_late_is_delivered_by_the_next_claim(db, connect, topic):
    wear(db)
    late = connect()
    just_swept(db, topic)
    message = append(late)
    overtaking = append(db)
    assert ids(claim(db, topic)) == [overtaking]
    assert claim(db, topic) == []
    late.commit()
    assert ids(claim(db, topic)) == [message]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_transaction_that_stays_open_is_passed_and_delivered_by_the_claim_after_its_commit(db, connect, topic):
    late = connect()
    message = append(late)
    time.sleep(PATIENCE)
    wear(db)
    just_swept(db, topic)  # the open transaction does not hold the floor
    late.commit()
    overtaking = append(db)
    assert ids(claim(db, topic)) == [message, overtaking]


@pytest.mark.parametrize("age", [0, PATIENCE])
@pytest.mark.parametrize("topic", TOPICS)
def test_messages_that_savepoints_left_are_in_the_claim_after_the_commit(db, connect, topic, age):
    wear(db, count=4_000)
    late = connect()
    late.execute("SELECT 1")
    with late.transaction(force_rollback=True):
        append(late)
    with late.transaction():
        messages = [append(late)]
        with late.transaction(force_rollback=True):
            append(late)
        messages.append(append(late))
    time.sleep(age)
    wear(db, count=4_000)
    just_swept(db, topic)
    late.commit()
    overtaking = append(db)
    assert ids(claim(db, topic)) == [*messages, overtaking]


def test_several_open_transactions_are_delivered_in_any_order_of_their_commits(db, connect):
    late = [connect() for _ in range(3)]
    messages = [append(session) for session in late]
    young = append(late[0])
    time.sleep(PATIENCE)
    wear(db)
    first, second, third = messages
    for place, topic, expected in (2, None, [third]), (0, "orders", [first, young]), (1, None, [second]):
        just_swept(db, topic)
        late[place].commit()
        assert ids(claim(db, topic)) == expected


@pytest.mark.parametrize("age", [0, PATIENCE])
@pytest.mark.parametrize("topic", TOPICS)
def test_rolled_back_messages_are_never_delivered_and_hold_nothing(db, connect, topic, age):
    wear(db, count=4_000)
    late = connect()
    append(late)
    with late.transaction(force_rollback=True):
        append(late)
    time.sleep(age)
    wear(db, count=4_000)
    late.rollback()
    just_swept(db, topic)
    message = append(db)
    assert ids(claim(db, topic)) == [message]
    assert set(states(db).values()) == {"delivered", "leased"}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_delay_that_was_over_before_the_commit_is_noticed(db, connect, topic):
    wear(db, delay=1)
    late = connect()
    just_swept(db, topic)
    message = append(late, available_at=clock(db, seconds=0.1))
    time.sleep(0.2)
    assert claim(db, topic) == []  # what was due until now is known
    late.commit()
    assert ids(claim(db, topic)) == [message]
