"""The races of the floor, with the floor really in use: every claim starts where the last look found nothing left.

Looks start at the beginning as long as that is cheap. So each test first wears its topic out: under a held snapshot
thousands of messages come and go, and their dead index entries stay. `just_swept` then proves by the pages
that claims touch that the floor is in use, and returns right after a look from the beginning: for a second no other
one comes to the rescue of what the floor would hide. Every rule holds for claims on the topic and on any topic.
"""

import contextlib
import json
import re
import statistics
import time
from pathlib import Path

import psycopg
import pytest
from conftest import append, claim, one, rows, states, until, value
from server import Server

CONF = {"max_prepared_transactions": 4, "autovacuum": False}
TOPICS = ["orders", None]
CHEAP, EXPENSIVE = 64, 120  # pages
WALK = 2_500  # pages of a purge that walks over 30,000 deliveries, and not of one that does not
PATIENCE = 1.2  # seconds after which an open transaction holds no floor, and a little
SHARED = Path(__file__).resolve().parents[2] / "src" / "store" / "cache.rs"
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


# -- the cost --------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_what_is_over_costs_the_next_claim_nothing(db, other, topic):
    wear(db)
    claim(other, "nothing")  # a new session reads the catalog first
    just_swept(db, topic)
    assert touched(other, topic) < CHEAP  # sessions share what they know


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


# -- late commits ----------------------------------------------------------------------------


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
def test_what_savepoints_have_left_is_delivered_by_the_claim_after_the_commit(db, connect, topic, age):
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
def test_what_is_rolled_back_is_never_delivered_and_holds_nothing(db, connect, topic, age):
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


# -- what comes back -------------------------------------------------------------------------


def release(db, token, id):
    assert value(db, "release", token)


def fail(db, token, id):
    assert value(db, "fail", token, "no", "2020-01-01") == "waiting"


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
def test_what_is_given_back_is_delivered_first_by_the_next_claim(db, other, give_back):
    old = [append(db), append(db)]
    leases = claim(db, lease_seconds=600)
    wear(db, delay=1 if give_back is fail else None)
    for topic, message, lease in zip(TOPICS, old, leases):
        just_swept(db, topic)
        give_back(other, lease.token, message)
        young = append(db)
        assert ids(claim(db, topic)) == [message, young]


@GIVING
def test_what_is_given_back_in_a_transaction_counts_from_its_commit(db, connect, give_back):
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


def lateness(db, due):
    seconds = one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)::float8", due)
    assert seconds > 0
    return seconds


# -- claims rolled back ----------------------------------------------------------------------


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


# -- paused topics ---------------------------------------------------------------------------


def pause(db, topic, paused=True):
    db.execute(
        "INSERT INTO outbox.topic (topic, paused) VALUES (%s, %s)"
        " ON CONFLICT ON CONSTRAINT topic_pkey DO UPDATE SET paused = excluded.paused",
        [topic, paused],
    )


def test_what_is_ready_and_due_in_a_paused_topic_costs_claims_on_any_topic_nothing(db, held):
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


def test_what_was_paused_is_delivered_soon_after(db, other):
    messages = [append(db, "paused"), append(db, "paused", available_at=clock(db, seconds=0.1))]
    pause(db, "paused")
    wear(db, delay=1)
    just_swept(db, None)
    assert claim(db, "paused") == []
    pause(other, "paused", False)
    assert ids(until(lambda: claim(db), SOON)) == messages


def test_what_was_paused_is_delivered_by_the_next_claim_on_its_topic(db, other):
    wear(db, "paused")
    just_swept(db, "paused")
    messages = [append(db, "paused") for _ in range(2)]
    pause(db, "paused")
    assert claim(db) == claim(db, "paused") == []
    pause(other, "paused", False)
    assert ids(claim(db, "paused")) == messages


# -- where nobody can tell -------------------------------------------------------------------


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


def prepared(session, function, **named):
    answer = function(session, **named)
    session.execute("PREPARE TRANSACTION 'floor'")
    return answer


@pytest.mark.parametrize("topic", TOPICS)
def test_what_is_changed_by_hand_is_delivered_soon(db, other, topic):
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


# -- whose floor it is -----------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_a_new_installation_begins_anew_also_in_running_sessions(db, other, topic):
    wear(db)
    just_swept(db, topic)
    claim(other, topic)
    db.execute("DROP EXTENSION outbox")
    db.execute("CREATE EXTENSION outbox")
    for session in db, other, db, other, db, other:
        message = append(session)  # its number is far below the old floor
        assert ids(claim(db, topic)) == [message]


@pytest.fixture
def neighbour(server, database):
    name = f"{database[:50]} neighbour"
    server.createdb(name, extension="outbox")
    yield name
    server.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.parametrize("topic", TOPICS)
def test_another_database_with_the_same_topic_has_a_floor_of_its_own(server, db, held, neighbour, topic):
    wear(db)
    just_swept(db, topic)
    with server.connect(neighbour, autocommit=True) as there:
        claim(there, topic)
        for _ in range(4):
            message = append(there)
            assert ids(claim(there, topic)) == [message]
    just_swept(db, topic)


def test_the_floor_stays_when_its_last_producer_works_for_another_database(server, database, db, held, neighbour):
    with server.connect(database, autocommit=True) as producer:
        wear(producer)
        just_swept(db, "orders")
    with contextlib.ExitStack() as sessions:
        for _ in range(5):  # one of them has the producer's place in shared memory
            append(sessions.enter_context(server.connect(neighbour, autocommit=True)))
        just_swept(db, "orders")


def test_more_topics_than_there_is_room_for_are_all_delivered(server, db, connect):
    """Those that find no room are looked at from the beginning."""
    room = int(re.search(r"const TOPICS: usize = (\d+);", SHARED.read_text())[1])
    db.execute("SELECT FROM generate_series(1, %s) AS n, LATERAL outbox.claim('w', 'full ' || n)", [room * 2])
    topics = [f"topic {n}" for n in range(256)]
    wear(db)
    old = append(db)
    (lease,) = claim(db, lease_seconds=600)
    for _ in range(2):
        late = connect()
        messages = {topic: append(late if n % 5 == 0 else db, topic) for n, topic in enumerate(topics)}
        delivered = {topic: ids(claim(db, topic)) for topic in topics}
        late.commit()
        for topic in topics[::5]:
            assert delivered[topic] == []
            delivered[topic] = ids(claim(db, topic))
        assert delivered == {topic: [message] for topic, message in messages.items()}
    release(db, lease.token, old)
    assert ids(claim(db, "orders")) == [old]
    db.execute("DROP EXTENSION outbox; CREATE EXTENSION outbox; SELECT outbox.purge()")
    assert one(db, "SELECT ok FROM outbox.status WHERE name = 'last purge'")  # though there is no room to remember it
    server.restart("immediate")  # the cache is full now, and for a minute none of its places is given away


# -- servers of their own --------------------------------------------------------------------


def test_without_shared_memory_everything_works():
    """There is none to be had where the server would make it."""
    with Server(conf={**CONF, "dynamic_shared_memory_type": "mmap"}) as server, none_to_be_had(server):
        server.createdb("app", extension="outbox")
        with server.connect("app", autocommit=True) as db, server.connect("app") as late:
            wear(db, count=2_000)
            old = append(late)
            young = append(db)
            assert ids(claim(db)) == [young]
            late.commit()
            (lease,) = claim(db, "orders")
            assert lease.id == old
            release(db, lease.token, old)
            assert ids(claim(late, lease_seconds=1)) == [old]
            assert claim(db) == []
            late.rollback()
            (lease,) = claim(db, lease_seconds=1)
            assert (lease.id, lease.attempts) == (old, 1)
            (again,) = claim(db, wait_seconds=30)
            assert (again.id, again.attempts) == (old, 2)
            fail(db, again.token, old)
            assert ids(claim(db, "orders")) == [old]
            delayed = append(db, available_at=clock(db, seconds=0.3))
            assert ids(claim(db, wait_seconds=30)) == [delayed]
            assert not one(db, ATTACHED)
            assert one(db, "SELECT delivered_total IS NULL AND failed_total IS NULL FROM outbox.stats")
            assert one(db, "SELECT ok FROM outbox.status WHERE name = 'last purge'")
        assert "PANIC" not in server.log()


@contextlib.contextmanager
def none_to_be_had(server):
    (folder := server.data / "pg_dynshmem").chmod(0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("preload", ["", "outbox"])
def test_there_is_room_for_thousands_of_topics(preload):
    with Server(conf={**CONF, "shared_preload_libraries": preload}) as server:
        server.createdb("app", extension="outbox")
        with server.connect("app", autocommit=True) as db, contextlib.closing(server.connect("app")) as holder:
            hold(holder)
            db.execute("SELECT FROM generate_series(1, 2000) AS n, LATERAL outbox.claim('w', 'topic ' || n)")
            assert one(db, ATTACHED)
            wear(db, "topic 2000")
            just_swept(db, "topic 2000")


def test_a_crash_forgets_the_floor_and_nothing_else(server, database):
    """A prepared transaction survives it, and so what is over cannot be removed afterwards either."""
    with server.connect(database, autocommit=True) as db:
        given_back, leased = append(db), append(db)
        leases = {lease.id: lease for lease in claim(db, lease_seconds=600)}
        with server.connect(database) as preparing:
            waiting = prepared(preparing, append)
        lost = server.connect(database)
        append(lost)
        time.sleep(PATIENCE)
        wear(db)
        just_swept(db, "orders")
        just_swept(db, None)
        release(db, leases[given_back].token, given_back)
        ready = append(db)
    server.kill9()
    server.start()
    with server.connect(database, autocommit=True) as db:
        assert ids(claim(db, "orders")) == [given_back, ready]
        young = append(db)
        assert ids(claim(db)) == [young]
        for topic in TOPICS:
            just_swept(db, topic)
        db.execute("COMMIT PREPARED 'floor'")
        assert ids(until(lambda: claim(db, "orders"), SOON)) == [waiting]
        assert value(db, "complete", leases[leased].token)
    lost.close()


def test_after_a_restart_the_floor_rises_before_anything_is_appended(server, database):
    with server.connect(database, autocommit=True) as db:
        prepared(server.connect(database), append, topic="other")  # keeps what is over from being removed
        wear(db)
    server.restart()
    with server.connect(database, autocommit=True) as db:
        for topic in TOPICS:
            just_swept(db, topic)
        db.execute("ROLLBACK PREPARED 'floor'")


def test_a_promoted_standby_begins_anew():
    with Server(conf=CONF) as primary, contextlib.ExitStack() as sessions:
        primary.createdb("app", extension="outbox")
        db = sessions.enter_context(contextlib.closing(primary.connect("app", autocommit=True)))
        given_back, ready = append(db), append(db)
        (lease,) = claim(db, batch_size=1, lease_seconds=600)
        hold(sessions.enter_context(contextlib.closing(primary.connect("app"))))
        with primary.standby() as standby:
            hold(sessions.enter_context(contextlib.closing(standby.connect("app"))))
            done = claim(db, "orders")
            wear(db)
            just_swept(db, "orders")
            release(db, done[0].token, ready)
            standby.catch_up()
            standby.promote()
            with standby.connect("app", autocommit=True) as promoted:
                until(lambda: not one(promoted, "SELECT pg_is_in_recovery()"))
                assert ids(claim(promoted, "orders")) == [ready]
                young = append(promoted)
                assert ids(claim(promoted)) == [young]
                for topic in TOPICS:
                    just_swept(promoted, topic)
                release(promoted, lease.token, given_back)
                young = append(promoted)
                assert ids(claim(promoted, "orders")) == [given_back, young]
