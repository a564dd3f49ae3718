"""What the tests of the background worker share."""

import time

import pytest
from conftest import append, claim, until, value

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
