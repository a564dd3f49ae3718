"""Whose floor it is: other installations, databases and topics, restarts, crashes and standbys."""

import contextlib
import re
import time

import pytest
from conftest import append, claim, one, until, value
from floor_in_use import (
    ATTACHED,
    CONF,
    PATIENCE,
    SHARED,
    SOON,
    TOPICS,
    clock,
    connect,
    fail,
    held,
    hold,
    ids,
    just_swept,
    other,
    prepared,
    release,
    wear,
)
from server import Server


@pytest.mark.parametrize("topic", TOPICS)
def test_a_new_installation_starts_fresh_also_in_running_sessions(db, other, topic):
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


def test_a_promoted_standby_starts_fresh():
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
