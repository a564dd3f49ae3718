"""The background purge: every outbox.purge_interval_seconds it purges each database that has the extension,
and it is never in anybody's way: not in that of a stop, a DROP DATABASE, a copy, or a database's own defaults.
"""

import time
import uuid

from conftest import append, claim, long_ago, one, states, until, value
from purge_worker import (
    CONF,
    LAUNCHER,
    PURGE,
    TICK,
    blocked_purge,
    complaints,
    finish,
    finish_many,
    interval,
    let_the_visit_end,
    processes,
)


def test_a_tick_purges_messages_past_their_retention_only(db):
    delivered, dead, waiting, ready = (append(db) for _ in range(4))
    first, second, third = claim(db, batch_size=3)
    value(db, "complete", first.token)
    value(db, "abandon", second.token)
    value(db, "fail", third.token)
    value(db, "consume_once", "mail", uuid.uuid4())
    value(db, "consume_once", "mail", waiting)
    long_ago(db)
    db.execute("UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year'")
    recent = append(db, topic="recent")
    value(db, "complete", claim(db, "recent")[0].token)
    until(lambda: delivered not in states(db) and dead not in states(db))
    until(lambda: one(db, "SELECT count(*) FROM outbox.processed") == 1)
    assert states(db) == {waiting: "waiting", ready: "ready", recent: "delivered"}
    assert one(db, "SELECT message_id FROM outbox.processed") == waiting  # its message is still stored


def test_a_tick_purges_more_than_one_batch(db):
    finish_many(db, 25_000)
    long_ago(db)
    until(lambda: one(db, "SELECT count(*) FROM outbox.message") == 0)


def test_a_tick_records_the_death_of_a_lease_that_ran_out(server, database, db):
    """Without any worker on the topic: another claim's token is stale only once the death is on record."""
    db.execute("INSERT INTO outbox.topic (topic, max_attempts) VALUES ('orders', 1)")
    append(db)
    (message,) = claim(db, lease_seconds=1)
    until(lambda: one(db, "SELECT count(*) FROM outbox.delivery WHERE ended_at IS NOT NULL"))
    assert value(db, "complete", message.token) is False
    assert one(db, "SELECT last_error FROM outbox.message") == "lease expired"


def test_a_reload_turns_it_off_and_on(server, db, interval):
    interval(0)
    let_the_visit_end(server)
    finish(db, 1)
    long_ago(db)
    time.sleep(2.5 * TICK)
    assert len(states(db)) == 1
    interval(1)
    until(lambda: not states(db))


def test_a_reload_shortens_a_long_interval_at_once(server, db, interval):
    interval(3600)
    let_the_visit_end(server)
    finish(db, 1)
    long_ago(db)
    interval(1)
    until(lambda: not states(db), 10)


def test_outbox_databases_restricts_it(server, database, db):
    server.createdb("Other db", extension="outbox")
    try:
        with server.connect("Other db", autocommit=True) as other:
            server.reload(**{"outbox.databases": "nowhere, Other db"})
            let_the_visit_end(server)
            for connection in (db, other):
                finish(connection, 1)
                long_ago(connection)
            until(lambda: not states(other))
            time.sleep(1.5 * TICK)
            assert len(states(db)) == 1
            server.reload(**{"outbox.databases": None})
            until(lambda: not states(db))
    finally:
        server.reload(**{"outbox.databases": None})
        server.psql('DROP DATABASE "Other db" WITH (FORCE)')


def test_terminate_ends_a_purge_in_mid_statement_at_once(server, database, db):
    finish(db, 1)
    with server.connect(database) as locker:
        locker.execute("LOCK TABLE outbox.receipt IN ACCESS EXCLUSIVE MODE")
        locker.execute("UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year'")
        locker.execute("UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year'")
        pid = blocked_purge(server, database)
        server.psql(f"SELECT pg_terminate_backend({pid})")
        until(lambda: pid not in processes(server, PURGE), 2)
        blocked_purge(server, database)  # the next tick tries again
        locker.commit()
    until(lambda: not states(db))


def test_a_fast_shutdown_ends_a_purge_in_mid_statement_at_once(server, database):
    locker = server.connect(database)
    locker.execute("LOCK TABLE outbox.receipt IN ACCESS EXCLUSIVE MODE")
    blocked_purge(server, database)
    started = time.monotonic()
    server.stop("fast")
    assert time.monotonic() - started < 5
    locker.close()
    server.start()


def test_a_smart_shutdown_is_not_kept_waiting(server):
    until(lambda: processes(server, LAUNCHER))
    started = time.monotonic()
    server.stop("smart")
    assert time.monotonic() - started < 5
    server.start()


def test_drop_database_works_beside_a_busy_worker(server, database, db):
    finish_many(db, 100_000)
    long_ago(db)
    until(lambda: processes(server, PURGE, database))
    db.close()
    server.psql(f'DROP DATABASE "{database}"')


def test_create_database_copies_a_database_that_is_visited(server, database, db):
    finish(db, 3)
    db.close()
    for _ in range(5):
        server.psql(f'CREATE DATABASE copy TEMPLATE "{database}"')
        with server.connect("copy", autocommit=True) as copy:
            assert len(states(copy)) == 3
            long_ago(copy)
            until(lambda: not states(copy))
        server.psql("DROP DATABASE copy")


def test_databases_without_the_extension_are_left_alone_quietly(server, database, db):
    server.createdb("plain")
    server.createdb("closed")
    server.psql("ALTER DATABASE closed ALLOW_CONNECTIONS false")
    time.sleep(1.5 * TICK)  # a visit may have begun before
    began = len(server.log())
    for _ in range(2):
        finish(db, 1)
        long_ago(db)
        until(lambda: not states(db))
    assert complaints(server.log()[began:]) == []
    server.psql("DROP DATABASE plain")
    server.psql("DROP DATABASE closed")


def test_drop_extension_and_create_again(server, database, db):
    finish(db, 2)
    began = len(server.log())
    db.execute("DROP EXTENSION outbox")
    time.sleep(1.5 * TICK)
    db.execute("CREATE EXTENSION outbox")
    finish(db, 2)
    long_ago(db)
    until(lambda: not states(db))
    assert complaints(server.log()[began:]) == []
