"""The background worker where something is wrong: versions, blocked databases, crashes, hostile defaults, backlogs."""

import os
import re
import signal
import time
import uuid

import psycopg
import pytest
from conftest import long_ago, one, states, until, value
from purge_worker import (
    CONF,
    INTERVAL,
    LAUNCHER,
    PURGE,
    TICK,
    blocked_purge,
    complaints,
    finish,
    let_the_visit_end,
    processes,
)


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
