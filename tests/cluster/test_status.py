"""outbox.status on servers in all conditions: it says what is wrong, and what to do."""

import contextlib

from conftest import append, one, until
from server import Server

CONF = {"max_prepared_transactions": 4, "shared_preload_libraries": "outbox", "outbox.purge_interval_seconds": 1}


def check(db, name):
    """(ok, detail)"""
    return db.execute("SELECT ok, detail FROM outbox.status WHERE name = %s", [name]).fetchone()


def test_a_healthy_server(db):
    until(lambda: check(db, "last purge")[1].startswith("finished"))
    assert all(ok for ok, in db.execute("SELECT ok FROM outbox.status"))
    ok, detail = check(db, "worker")
    assert ok and "every 1 s" in detail and str(launcher(db)) in detail
    assert check(db, "preload") == (True, "loaded when the server started")


def launcher(db):
    return one(db, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'")


def test_an_owner_that_is_no_superuser(server, database, db):
    """He does not see whose the other processes are: what he cannot know, status does not deny."""
    until(lambda: check(db, "last purge")[1].startswith("finished"))
    db.execute("CREATE ROLE owner")
    db.execute("CREATE ROLE seller")
    db.execute(
        """DO $$ DECLARE o record; BEGIN
             FOR o IN SELECT format('ROUTINE %s', oid::regprocedure) AS it FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
                      UNION ALL SELECT format('TABLE %s', oid::regclass) FROM pg_class
                       WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'S')
                      UNION ALL SELECT 'TYPE outbox.claimed' UNION ALL SELECT 'SCHEMA outbox' LOOP
               EXECUTE format('ALTER %s OWNER TO owner', o.it);
             END LOOP; END $$"""
    )
    assert str(launcher(db)) in check(db, "worker")[1]
    ok, detail = check(db, "xmin horizon")
    assert ok and "pg_read_all_stats" in detail
    assert all(ok for ok, in db.execute("SELECT ok FROM outbox.status"))
    with db.transaction(force_rollback=True):
        db.execute("SET LOCAL ROLE owner")
        db.execute("SELECT outbox.grant_access('seller', 'producer:orders')")
        db.execute("SET LOCAL ROLE seller")
        append(db)
    db.execute("GRANT pg_read_all_stats TO owner")
    until(lambda: check(db, "xmin horizon") == (True, "not held"))
    db.execute("REASSIGN OWNED BY owner TO postgres")
    db.execute("DROP ROLE owner, seller")


def test_the_background_purge_is_off_or_visits_other_databases(server, database):
    try:
        server.reload(**{"outbox.purge_interval_seconds": 0})
        until(lambda: told(server, database, "worker") == (True, "off: outbox.purge_interval_seconds is 0"))
        server.reload(**{"outbox.purge_interval_seconds": 1, "outbox.databases": "one, another"})
        until(lambda: told(server, database, "worker") == (False, "does not visit this database: add it to outbox.databases"))
        server.reload(**{"outbox.databases": f"one, {database}"})
        until(lambda: told(server, database, "worker")[0])
    finally:
        server.reload(**CONF, **{"outbox.databases": None})


def told(server, database, name):
    with server.connect(database) as db:
        return check(db, name)


def test_a_restart_is_no_reason_for_alarm(server, database):
    with server.connect(database, autocommit=True) as db:
        until(lambda: check(db, "last purge")[1].startswith("finished"))
    server.reload(**{"outbox.databases": "another"})
    server.restart()
    try:
        ok, detail = told(server, database, "last purge")
        assert ok and detail.startswith("none has finished since the server started")
    finally:
        server.reload(**{"outbox.databases": None})


def test_a_database_made_later_is_not_late(server):
    with contextlib.closing(server.connect()) as db:
        age = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
        until(lambda: one(db, age) > 5)
    server.reload(**{"outbox.databases": "another"})
    try:
        server.createdb("later", extension="outbox")
        ok, detail = told(server, "later", "last purge")
        assert ok and detail.startswith("none has finished since") and int(detail.split()[-3]) <= 3
    finally:
        server.psql("DROP DATABASE later WITH (FORCE)")
        server.reload(**{"outbox.databases": None})


def test_holder_of_the_horizon(server, database, db):
    not_held = lambda: check(db, "xmin horizon") == (True, "not held")  # noqa: E731; but by a purge for a moment
    until(not_held)
    with server.connect(database, application_name="report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        holder = f"process {reader.info.backend_pid} (postgres, report, idle in transaction)"
        until(lambda: holder in check(db, "xmin horizon")[1])
        assert check(db, "xmin horizon")[0]  # not for long yet
    with server.connect(database, application_name="writer") as writer:
        append(writer)
        until(lambda: f"process {writer.info.backend_pid} (postgres, writer" in check(db, "xmin horizon")[1])
        writer.rollback()
    server.createdb("other")
    with server.connect("other") as elsewhere:
        elsewhere.execute("SELECT pg_current_xact_id()")
        until(not_held)
    server.psql("DROP DATABASE other")
    with server.connect(database) as writer:
        append(writer)
        writer.execute("PREPARE TRANSACTION 'forgotten'")
    until(lambda: "prepared transaction 'forgotten' (postgres)" in check(db, "xmin horizon")[1])
    db.execute("ROLLBACK PREPARED 'forgotten'")
    standby = server.standby({"hot_standby_feedback": True, "wal_receiver_status_interval": 1})
    try:
        with standby.connect(database) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            until(lambda: "(hot_standby_feedback)" in check(db, "xmin horizon")[1])
    finally:
        standby.close()


def test_a_held_horizon_is_wrong_after_a_hundred_thousand_transactions(server, database, db):
    """Or after five minutes, but a slot does not say since when it holds it."""
    db.execute("SELECT pg_create_physical_replication_slot('gone', true)")
    feedback = {"hot_standby_feedback": True, "wal_receiver_status_interval": 1, "primary_slot_name": "gone"}
    standby = server.standby(feedback)
    try:
        with contextlib.closing(standby.connect(database)) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            until(lambda: 'replication slot "gone" (in use)' in check(db, "xmin horizon")[1])
            standby.stop("immediate")
    finally:
        standby.close()
    until(lambda: 'replication slot "gone" (not in use)' in check(db, "xmin horizon")[1])
    assert check(db, "xmin horizon")[0]
    db.execute("CREATE TABLE burnt ()")
    db.execute(
        """DO $$ BEGIN
             FOR i IN 1 .. 101000 LOOP
               BEGIN INSERT INTO burnt DEFAULT VALUES; EXCEPTION WHEN division_by_zero THEN NULL; END;
             END LOOP; END $$"""
    )
    ok, detail = check(db, "xmin horizon")
    assert not ok and "SELECT pg_drop_replication_slot('gone')" in detail
    db.execute("SELECT pg_drop_replication_slot('gone')")
    until(lambda: check(db, "xmin horizon") == (True, "not held"))


def test_without_preload():
    with Server() as server:
        server.createdb("app", extension="outbox")
        with server.connect("app", autocommit=True) as db:
            checks = {name: ok for name, ok, _ in db.execute("SELECT * FROM outbox.status")}
            assert {name for name, ok in checks.items() if not ok} == {"preload", "worker"}
            assert "shared_preload_libraries" in check(db, "preload")[1]
            assert check(db, "last purge")[0]
        server.reload(**{"outbox.purge_interval_seconds": 0})
        until(lambda: all(told(server, "app", name)[0] for name in ("preload", "worker")))


def test_it_shows_no_payload_error_or_token(db):
    append(db, payload='"secret payload"')
    token = one(db, "SELECT token FROM outbox.claim('worker')")
    db.execute("SELECT outbox.fail(%s, 'secret error')", [token])
    append(db, payload='"secret payload"')
    shown = str(db.execute("SELECT * FROM outbox.status").fetchall() + db.execute("SELECT * FROM outbox.stats").fetchall())
    assert "secret" not in shown and str(token) not in shown
