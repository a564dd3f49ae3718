"""What every client library does, whatever its language: `programs` is the folder with its two examples, `deliver` and `produce`."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from server import Server


@pytest.fixture
def start(programs, server, database, tmp_path):
    started = []

    def start(*arguments):
        output = open(tmp_path / f"{len(started)}", "w+")
        conninfo = f"host={server.socket} port={server.port} user=postgres dbname={database}"
        worker = subprocess.Popen([programs / "deliver", conninfo, *arguments], stdout=output)
        worker.lines = lambda: Path(output.name).read_text().splitlines()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def append(db, payload, key=None):
    db.execute("SELECT outbox.append('t', 'e', %s, key => %s)", (payload, key))


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def states(db):
    return dict(db.execute("SELECT state, count(*) FROM outbox.message GROUP BY state").fetchall())


def starts(worker, key=None):
    """Numbers of the deliveries begun, in that order."""
    rows = [line.split() for line in worker.lines() if line.startswith("start")]
    return [int(number) for _, number, of, _ in rows if key in (None, of)]


def end(worker):
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    return worker.lines()[-1]


def test_produce(programs, server, database, db):
    conninfo = f"host={server.socket} port={server.port} user=postgres dbname={database}"
    done = subprocess.run([programs / "produce", conninfo], check=True, capture_output=True, text=True)
    *ids, first, second = done.stdout.split()
    stored = db.execute("SELECT id::text, payload::text, key, headers::text FROM outbox.message").fetchall()
    assert {row[0] for row in stored} == set(ids) and len(stored) == 3
    assert sum("1234567890123456789012345678901234567890" in row[1] for row in stored) == 2
    assert [row[2] for row in stored].count("k") == 2
    assert (first, second) == ("true", "false")


def test_drains_in_order_of_keys(start, db):
    for n in range(60):
        append(db, f'{{"n": {n}, "sleep": 0.01}}', f"k{n % 4}")
    worker = start("drain")
    assert worker.wait(60) == 0
    assert states(db) == {"delivered": 60}
    for key in range(4):
        assert starts(worker, f"k{key}") == list(range(key, 60, 4))
    assert worker.lines()[-1] == "Counts { delivered: 60, failed: 0, released: 0, stale: 0 }"


def test_slow_delivery_keeps_its_lease(start, db):
    append(db, '{"n": 1, "sleep": 5}', "k")
    worker, other = start(), start()
    until(lambda: states(db) == {"delivered": 1})
    assert len(starts(worker) + starts(other)) == 1
    assert "stale: 0" in end(worker) and "stale: 0" in end(other)


def test_poison_message_goes_alone(start, db):
    db.execute("""SELECT outbox.set_topic('t', '{"max_attempts": 2, "backoff_seconds": 1}')""")
    append(db, '{"n": 0, "fail": true}', "k")
    append(db, '{"n": 1}', "k")
    append(db, '{"n": 2}', "other")
    worker = start()
    until(lambda: states(db) == {"dead": 1, "delivered": 2})
    assert starts(worker, "k") == [0, 0, 1]
    assert db.execute("SELECT last_error FROM outbox.message WHERE state = 'dead'").fetchone()[0] == "as told"
    tokens = [line.split()[3] for line in worker.lines() if line.startswith("start")]
    assert len(set(tokens)) == 4
    end(worker)


def test_worker_that_dies_is_followed(start, db):
    for n in range(5):
        append(db, f'{{"n": {n}, "sleep": 1}}', "k")
    dying = start()
    until(lambda: starts(dying))
    dying.kill()
    worker = start()
    until(lambda: states(db) == {"delivered": 5})
    assert starts(worker) == sorted(starts(worker))
    end(worker)


def test_server_restarts_in_mid_batch(start, server, database, db):
    for n in range(30):
        append(db, f'{{"n": {n}, "sleep": 0.2}}', f"k{n % 3}")
    worker = start()
    until(lambda: len(starts(worker)) > 6)
    server.restart("immediate")
    with server.connect(database, autocommit=True) as db:
        until(lambda: states(db) == {"delivered": 30})
    assert set(starts(worker)) == set(range(30))
    end(worker)


def test_stops_gracefully(start, db):
    append(db, '{"n": 0, "sleep": 1}', "k")
    append(db, '{"n": 1}', "k")
    worker = start()
    until(lambda: starts(worker))
    assert "delivered: 1, failed: 0, released: 1, stale: 0" in end(worker)
    assert states(db) == {"delivered": 1, "ready": 1}


def test_stop_wakes_a_worker_that_sleeps(start, db):
    worker = start()
    active = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'outbox.claim' AND state = 'active'"
    until(lambda: db.execute(f"{active} AND pid <> pg_backend_pid()").fetchone()[0] == 1)
    time.sleep(0.2)
    begun = time.monotonic()
    end(worker)
    assert time.monotonic() - begun < 2


def test_failover_to_a_standby(programs, tmp_path):
    """The worker is given both hosts: the old primary comes back as a read-only one and must be left alone."""
    with Server() as primary:
        primary.createdb("app", extension="outbox")
        standby = primary.standby()
        try:
            with primary.connect("app", autocommit=True) as db:
                for n in range(30):
                    append(db, f'{{"n": {n}, "sleep": 0.2}}', f"k{n % 3}")
            hosts = f"host={primary.socket},{standby.socket} port={primary.port},{standby.port}"
            conninfo = f"{hosts} user=postgres dbname=app target_session_attrs=read-write"
            with open(tmp_path / "out", "w") as output:
                worker = subprocess.Popen([programs / "deliver", conninfo], stdout=output)
            try:
                worker.lines = lambda: (tmp_path / "out").read_text().splitlines()
                until(lambda: len(starts(worker)) > 6)
                standby.catch_up()
                primary.reload(default_transaction_read_only=True)  # demoted: 25006 in the worker's session
                time.sleep(1)
                standby.catch_up()
                standby.promote()
                with standby.connect("app", autocommit=True) as db:
                    until(lambda: states(db) == {"delivered": 30})
                assert set(starts(worker)) == set(range(30))
                end(worker)
            finally:
                worker.kill()
                worker.wait()
        finally:
            standby.close()
