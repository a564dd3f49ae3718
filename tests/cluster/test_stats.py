"""outbox.stats: right about small numbers to the message, right about large ones at a price that does not grow, also where
dead index entries cannot be removed; and what becomes of its totals.
"""

import contextlib
import random
import time

from conftest import append, claim, one, rows, until, value
from floor_in_use import append_many, connect, explained, held, other, pages, wear  # noqa: F401

CONF = {"max_prepared_transactions": 4, "autovacuum": False}
STATES = ("ready", "leased", "waiting", "dead")


def by_state(db):
    """{topic: {state: count}} without the zeros, and without the old leases that `wear` needs."""
    found = db.execute(f"SELECT topic, {', '.join(STATES)} FROM outbox.stats WHERE topic <> 'pin'").fetchall()
    return {
        topic: {state: count for state, count in zip(STATES, counts) if count}
        for topic, *counts in found if any(counts)
    }


def counted(db):
    found = {}
    query = "SELECT topic, state, count(*) FROM outbox.message WHERE state <> 'delivered' GROUP BY topic, state"
    for topic, state, count in db.execute(query):
        found.setdefault(topic, {})[state] = count
    return found


def totals(db, topic="orders"):
    query = "SELECT delivered_total, failed_total, stale_total FROM outbox.stats WHERE topic = %s"
    return db.execute(query, [topic]).fetchone()


def test_it_agrees_with_the_messages(db, seed):
    """Through thousands of random steps."""
    rng, tokens = random.Random(seed), []
    topics = ["a", "b", "c"]
    delivered = {topic: 0 for topic in topics}
    for step in range(1500):
        topic = rng.choice(topics)
        action = rng.choice(["append", "append", "later", "soon", "claim", "claim", "short", "answer", "answer", "purge"])
        if action in ("append", "later", "soon"):
            delay = {"append": None, "later": 3600, "soon": 0.05}[action]
            at = delay and one(db, "SELECT clock_timestamp() + make_interval(secs => %s)", delay)
            append(db, topic, available_at=at, key=rng.choice([None, None, "k", "l"]))
        elif action in ("claim", "short"):
            leases = claim(db, rng.choice([topic, None]), batch_size=3, lease_seconds=1 if action == "short" else 600)
            tokens += [(lease.topic, lease.token) for lease in leases]
        elif action == "answer" and tokens:
            leased, token = tokens.pop(rng.randrange(len(tokens)))
            answer = rng.choice(["complete", "complete", "fail", "abandon", "release"])
            if value(db, answer, token) is True and answer == "complete":
                delivered[leased] += 1
        elif action == "purge":
            value(db, rng.choice(["redrive", "pause", "resume"]), topic)
        if step % 50 == 0:
            until(lambda: by_state(db) == counted(db), 5)  # both move on with the clock
    assert {topic: totals(db, topic)[0] for topic in topics} == delivered


def test_a_hundred_thousand_are_not_visited(db):
    """What is ready, waiting or dead in great number is counted by the pages of an index, right to the message."""
    for topic in range(20):
        append_many(db, 5_000, f"topic {topic}")
        append_many(db, 1_000, f"topic {topic}", available_at="2100-01-01T00:00:00Z")
    append_many(db, 5_000, "hot", key="key")
    (head,) = claim(db, "hot", batch_size=1)
    while one(db, "SELECT count(*) FROM outbox.delivery WHERE place = 'r' AND topic = 'hot'") > 1:
        assert claim(db, "hot") == []  # parks them
    assert sum(one(db, "SELECT ready FROM outbox.stats WHERE topic = %s", f"topic {n}") for n in range(20)) == 100_000
    assert by_state(db) == counted(db)
    assert pages(explained(db, "SELECT * FROM outbox.stats")) < 5_000


def test_finished_messages_are_not_counted_under_a_held_snapshot(db, other):  # noqa: F811
    wear(db)
    wear(db, topic="others")
    wear(db, topic="delayed", delay=0.5)
    for _ in range(2):
        append(db)
    assert len(claim(db, batch_size=1, lease_seconds=600)) == 1
    assert by_state(other) == {"orders": {"ready": 1, "leased": 1}}
    assert pages(explained(other, "SELECT * FROM outbox.stats")) < 5_000


def test_workers_that_died_leave_ready_messages(server, database, db, other):  # noqa: F811
    """The leases ran out and nobody claims: far below the floor, with what is over in between."""
    messages = [append(db) for _ in range(3)]
    assert [lease.id for lease in claim(db, "orders", lease_seconds=3)] == messages
    for _ in range(3):
        wear(db)
    assert by_state(other).get("orders", {}).get("ready", 0) == 0
    until(lambda: by_state(other) == {"orders": {"ready": 3}}, 10)
    time.sleep(1)
    assert one(other, "SELECT oldest_ready_seconds FROM outbox.stats WHERE topic = 'orders'") >= 1
    assert "orders" in one(other, "SELECT detail FROM outbox.status WHERE name = 'oldest ready'")


def test_totals_of_prepared_transactions_and_killed_sessions(server, database, db):
    for _ in range(4):
        append(db)
    with contextlib.closing(server.connect(database, autocommit=True)) as worker:
        worker.execute("BEGIN")
        assert value(worker, "complete", claim(worker, batch_size=1)[0].token)
        worker.execute("PREPARE TRANSACTION 'done'")
        assert totals(db) == (1, 0, 0)
        worker.execute("COMMIT PREPARED 'done'")
        assert totals(db) == (1, 0, 0)
        worker.execute("BEGIN")
        assert value(worker, "complete", claim(worker, batch_size=1)[0].token)
        one(db, "SELECT pg_terminate_backend(%s, 10000)", worker.info.backend_pid)
    assert totals(db) == (1, 0, 0)


def test_totals_start_at_zero_with_the_server_and_with_the_extension(server, database):
    with server.connect(database, autocommit=True) as db:
        append(db)
        assert value(db, "complete", claim(db)[0].token)
        append(db)
        assert totals(db) == (1, 0, 0)
    server.restart()
    with server.connect(database, autocommit=True) as db:
        assert totals(db) == (0, 0, 0)
        assert value(db, "complete", claim(db)[0].token)
        assert totals(db) == (1, 0, 0)
        server.createdb("elsewhere", extension="outbox")
        with server.connect("elsewhere", autocommit=True) as elsewhere:
            assert elsewhere.execute("SELECT * FROM outbox.stats").fetchall() == []
        server.psql("DROP DATABASE elsewhere")
        db.execute("DROP EXTENSION outbox; CREATE EXTENSION outbox")
        assert db.execute("SELECT * FROM outbox.stats").fetchall() == []
        append(db)
        assert totals(db) == (0, 0, 0)


def test_more_topics_than_are_counted(server, database, db):
    """Some 4,000 topics of all databases have totals, further ones have none; their messages are counted all the same. What was
    counted stays, whoever comes later.
    """
    db.execute("SELECT outbox.append('topic ' || n, 'placed', '1') FROM generate_series(1, 5000) AS n")
    while leases := claim(db, batch_size=500):
        rows(db, "complete_batch", [lease.token for lease in leases])
    db.execute("SELECT outbox.append('topic ' || n, 'placed', '1') FROM generate_series(1, 5000) AS n")
    found = db.execute("SELECT ready, delivered_total FROM outbox.stats").fetchall()
    assert len(found) == 5000 and {ready for ready, _ in found} == {1}
    assert {delivered for _, delivered in found} == {1, None}
    assert 900 <= sum(delivered is None for _, delivered in found) < 2000
    before = counted_totals(db)
    while leases := claim(db, batch_size=500):
        rows(db, "complete_batch", [lease.token for lease in leases])
    assert counted_totals(db) == {topic: 2 for topic in before}
    server.restart()


def counted_totals(db):
    return dict(db.execute("SELECT topic, delivered_total FROM outbox.stats WHERE delivered_total IS NOT NULL").fetchall())


def test_a_standby_shows_the_stock(server, database, db):
    append(db)
    claim(db)
    append(db)
    standby = server.standby()
    try:
        standby.catch_up()
        with standby.connect(database, autocommit=True) as reader:
            assert by_state(reader) == {"orders": {"ready": 1, "leased": 1}}
            checks = dict(reader.execute("SELECT name, ok FROM outbox.status").fetchall())
            assert checks["version"] and checks["worker"] and checks["last purge"]
    finally:
        standby.close()
