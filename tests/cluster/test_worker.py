"""The background purge: every outbox.purge_interval_seconds it purges each database that has the extension,
and it is never in anybody's way: not in that of a stop, a DROP DATABASE, a copy, or a database's own defaults.
"""

import os
import re
import signal
import time
import uuid

import psycopg
import pytest
from conftest import append, claim, long_ago, one, states, until, value

CONF = {
    "shared_preload_libraries": "outbox",
    "outbox.purge_interval_seconds": 1,
}
INTERVAL = "outbox.purge_interval_seconds"
TICK = 1.0
LAUNCHER = "outbox launcher"
PURGE = "outbox purge"


def finish(db, count):
    """Deliver `count` new messages; returns their ids."""
    ids = [append(db, payload=str(n)) for n in range(count)]
    for message in claim(db, batch_size=count):
        assert value(db, "complete", message.token)
    return ids


def finish_many(db, count):
    """As finish, quickly, inside the server."""
    db.execute(
        """DO $$
           BEGIN
               FOR batch IN 1 .. %s / 500 LOOP
                   PERFORM outbox.append_batch('orders', (SELECT jsonb_agg(jsonb_build_object(
                       'type', 'placed', 'payload', n)) FROM generate_series(1, 500) AS n));
                   PERFORM outbox.complete_batch(ARRAY(SELECT token FROM outbox.claim('w', batch_size => 500)));
               END LOOP;
           END $$"""
        % count
    )


def processes(server, kind, database=None):
    """Process ids of the launcher or the purges that are there now."""
    found = server.psql(
        "SELECT pid FROM pg_stat_activity"
        f" WHERE backend_type = '{kind}' AND ({database is None} OR datname = '{database}')"
    )
    return [int(pid) for pid in found.split()]


def blocked_purge(server, database):
    """The purge of that database once it waits for a lock."""
    waiting = (
        f"SELECT pid FROM pg_stat_activity WHERE backend_type = '{PURGE}'"
        f" AND datname = '{database}' AND wait_event_type = 'Lock'"
    )
    return int(until(lambda: server.psql(waiting)))


def let_the_visit_end(server):
    """Wait until a visit that began before a reload is over."""
    quiet = 0
    while quiet < 4:
        quiet = 0 if processes(server, PURGE) else quiet + 1
        time.sleep(TICK / 4)


def complaints(log):
    return [line for line in log.splitlines() if any(f" {w}:" in line for w in ("WARNING", "ERROR", "FATAL", "PANIC"))]


@pytest.fixture
def interval(server):
    """Changes the interval; the module's own comes back after the test."""
    yield lambda seconds: server.reload(**{INTERVAL: seconds})
    server.reload(**{INTERVAL: CONF[INTERVAL]})


def test_a_tick_purges_what_is_past_its_retention_and_nothing_else(db):
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


def test_a_database_of_another_version_is_left_alone_with_a_warning(server, database, db):
    """As between a new package and ALTER EXTENSION outbox UPDATE. The other databases are visited."""
    version = one(db, "SELECT extversion FROM pg_extension WHERE extname = 'outbox'")
    update = "UPDATE pg_extension SET extversion = %s WHERE extname = 'outbox'"
    server.createdb("up to date", extension="outbox")
    try:
        with server.connect("up to date", autocommit=True) as other:
            finish(db, 1)
            finish(other, 1)
            began = len(server.log())
            db.execute(update, ["0.0.9"])
            long_ago(db)
            long_ago(other)
            until(lambda: not states(other))
            until(lambda: "0.0.9" in server.log()[began:])
            assert not [line for line in complaints(server.log()[began:]) if "WARNING" not in line]
            assert len(states(db)) == 1
            db.execute(update, [version])
            until(lambda: not states(db))
    finally:
        server.psql('DROP DATABASE "up to date" WITH (FORCE)')


def test_a_database_that_is_blocked_does_not_hold_up_the_others(server, database, db):
    server.createdb("blocked", extension="outbox")
    locker = server.connect("blocked")
    try:
        locker.execute("LOCK TABLE outbox.receipt IN ACCESS EXCLUSIVE MODE")
        blocked_purge(server, "blocked")
        finish(db, 1)
        long_ago(db)
        until(lambda: not states(db))
    finally:
        locker.close()
        server.psql("DROP DATABASE blocked WITH (FORCE)")


@pytest.mark.parametrize("victim", [LAUNCHER, PURGE])
def test_after_a_crash_of_a_worker_the_launcher_comes_back(server, database, victim):
    with server.connect(database, autocommit=True) as db:
        finish(db, 1)
    locker = server.connect(database)
    if victim == PURGE:
        locker.execute("LOCK TABLE outbox.receipt IN ACCESS EXCLUSIVE MODE")
        pid = blocked_purge(server, database)
    else:
        (pid,) = until(lambda: processes(server, LAUNCHER))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(psycopg.OperationalError):  # the server ends all sessions and starts again
        until(lambda: locker.execute("SELECT pg_sleep(0.1)") and False)
    locker.close()

    def reborn():
        try:
            return processes(server, LAUNCHER)
        except Exception:  # still recovering
            return []

    assert until(reborn) != [pid]
    with server.connect(database, autocommit=True) as db:
        long_ago(db)
        until(lambda: not states(db))


def test_a_launcher_that_was_terminated_comes_back(server, db):
    (pid,) = until(lambda: processes(server, LAUNCHER))
    server.psql(f"SELECT pg_terminate_backend({pid})")
    assert until(lambda: set(processes(server, LAUNCHER)) - {pid})
    finish(db, 1)
    long_ago(db)
    until(lambda: not states(db))


def test_hostile_defaults_do_not_stop_it(server, database, db):
    finish(db, 2)
    value(db, "consume_once", "mail", uuid.uuid4())
    db.execute("CREATE SCHEMA evil")
    for shadow in (
        "FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT timestamptz '-infinity'$$",
        "FUNCTION evil.make_interval(secs float8) RETURNS interval LANGUAGE sql AS $$SELECT interval '9 years'$$",
        "TABLE evil.receipt (first bigint)",
    ):
        db.execute(f"CREATE {shadow}")
    server.reload(**{INTERVAL: 0})  # all of it is in place before the next visit
    let_the_visit_end(server)
    long_ago(db)
    for setting in (
        "default_transaction_read_only = on",
        "default_transaction_isolation = serializable",
        "default_transaction_deferrable = on",
        "search_path = evil, pg_catalog",
        "statement_timeout = 1",
        "lock_timeout = 1",
        "idle_in_transaction_session_timeout = 1",
        "row_security = off",
        "timezone = 'Pacific/Kiritimati'",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "enable_indexscan = off",
        "jit_above_cost = 0",
        "session_replication_role = replica",
    ):
        server.psql(f'ALTER DATABASE "{database}" SET {setting}')
    server.psql("ALTER ROLE postgres SET default_transaction_read_only = on")
    try:
        server.reload(**{INTERVAL: 1})
        until(lambda: not states(db))
        assert one(db, "SELECT count(*) FROM outbox.processed") == 0
    finally:
        server.psql("SET default_transaction_read_only = off; ALTER ROLE postgres RESET ALL")


def test_autovacuum_sees_its_deletes(db):
    deleted = "SELECT n_tup_del FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = 'envelope'"
    finish(db, 100)
    long_ago(db)
    until(lambda: not states(db))
    until(lambda: one(db, deleted) >= 100)


def test_a_backlog_of_one_database_keeps_no_other_waiting(server, database, db):
    """A visit that makes progress without end, here by a trigger that appends what is purged anew, ends all the same."""
    db.execute(
        """CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               INSERT INTO outbox.processed VALUES (OLD.consumer, gen_random_uuid(), OLD.processed_at);
               PERFORM pg_sleep(0.02);
               RETURN OLD;
           END $$"""
    )
    db.execute("CREATE TRIGGER again BEFORE DELETE ON outbox.processed FOR EACH ROW EXECUTE FUNCTION again()")
    db.execute("INSERT INTO outbox.processed VALUES ('c', gen_random_uuid(), '2020-01-01')")
    other = f"{database}_other"[-60:]
    server.createdb(other, extension="outbox")
    try:
        until(lambda: processes(server, PURGE, database))
        with server.connect(other, autocommit=True) as connection:
            finish(connection, 3)
            long_ago(connection)
            until(lambda: not states(connection), seconds=40)
    finally:
        db.execute("DROP TRIGGER again ON outbox.processed")
        server.psql(f'DROP DATABASE "{other}" WITH (FORCE)')


def test_a_visit_leaves_nothing_behind_in_the_launcher(server, db):
    """Its memory, as the server logs it, is the same after some dozen visits."""

    def memory():
        seen = len(server.log())
        launcher = processes(server, LAUNCHER)[0]
        server.psql(f"SELECT pg_log_backend_memory_contexts({launcher})")
        return int(until(lambda: re.findall(r"; TopMemoryContext: .*; (\d+) used", server.log()[seen:]))[0])

    def visits(count):
        rounds = [f"visited_{n}" for n in range(8)]
        for name in rounds:
            server.createdb(name)
        time.sleep(count * TICK)
        for name in rounds:
            server.psql(f'DROP DATABASE "{name}" WITH (FORCE)')

    visits(2)
    before = memory()
    visits(3)
    assert memory() <= before
