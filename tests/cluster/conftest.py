"""What the programs here share: clusters, databases, and the extension's functions as Python calls.

    def test_it(server, database, db): …

`server` is a throw-away cluster with the settings in the module's CONF, for all tests of the module;
`database` the name of a new database on it that has the extension; `db` an autocommit connection there.

    pytest tests/cluster --rounds 20 --seconds 300     more crashes, a longer model run
    pytest tests/cluster --seed 7                      repeat a run that failed
"""

import sys
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import namedtuple_row

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from server import Server  # noqa: E402

TOKEN = "00000000-0000-8001-8000-000000000001"  # well formed, of no lease
CALLS = {  # every function that writes, with arguments that pass its checks
    "append": ("t", "t", "1"),
    "append_batch": ("t", '[{"type": "t", "payload": 1}]'),
    "claim": ("w",),
    "wait": ("t", 0),
    "complete": (TOKEN,),
    "complete_batch": ([TOKEN],),
    "fail": (TOKEN,),
    "abandon": (TOKEN,),
    "extend": (TOKEN,),
    "release": (TOKEN,),
    "consume_once": ("c", TOKEN),
    "retry_dead": (TOKEN,),
    "redrive": ("t",),
    "discard": ("t",),
    "pause": ("t",),
    "resume": ("t",),
    "set_topic": ("t", "{}"),
    "grant_access": ("pg_monitor", "monitor"),
    "revoke_access": ("pg_monitor", "monitor"),
    "purge": (),
}


PROCEDURES = {"wait"}


def pytest_addoption(parser):
    parser.addoption("--rounds", type=int, default=3, help="crashes in test_crash.py")
    parser.addoption("--seconds", type=int, default=20, help="length of the run in test_model.py")
    parser.addoption("--tools", default="vacuum,reindex,repack", help="beside the load of test_torture.py")
    parser.addoption("--seed", type=int, default=None, help="of the random choices; else a new one")


@pytest.fixture(scope="module")
def server(request):
    with Server(conf=getattr(request.module, "CONF", None)) as server:
        yield server


@pytest.fixture
def database(server, request):
    name = request.node.name[:60]
    server.createdb(name, extension="outbox")
    yield name
    if server.is_running():
        server.psql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def db(server, database):
    with server.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def seed(request):
    chosen = request.config.getoption("--seed")
    chosen = time.time_ns() % 1_000_000 if chosen is None else chosen
    print(f"--seed {chosen}")  # pytest shows it when the test fails
    return chosen


def rows(connection, function, *arguments, **named):
    """`SELECT * FROM outbox.function(…)` as named tuples; of a procedure, which is called, none."""
    places = ["%s"] * len(arguments) + [f"{name} => %s" for name in named]
    verb = "CALL" if function in PROCEDURES else "SELECT * FROM"
    statement = f"{verb} outbox.{function}({', '.join(places)})"
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(statement, [*arguments, *named.values()])
        return [] if cursor.description is None else cursor.fetchall()


def value(connection, function, *arguments, **named):
    """What a function answers that returns no set."""
    return rows(connection, function, *arguments, **named)[0][0]


def append(connection, topic="orders", payload="1", **named):
    """The id of a new message; `payload` is JSON."""
    return value(connection, "append", topic, "placed", payload, **named)


def claim(connection, topic=None, **named):
    return rows(connection, "claim", named.pop("owner", "worker"), topic, **named)


def one(connection, query, *arguments):
    """The only value of a query's only row."""
    return connection.execute(query, arguments).fetchone()[0]


def states(connection):
    """{id: state} of all stored messages."""
    return dict(connection.execute("SELECT id, state FROM outbox.message").fetchall())


def long_ago(connection):
    """Make everything that is over look as if it had ended a year ago."""
    for table, column in (
        ("envelope", "occurred_at"),
        ("receipt", "delivered_at"),
        ("delivery", "ended_at"),
        ("processed", "processed_at"),
    ):
        connection.execute(f"UPDATE outbox.{table} SET {column} = {column} - interval '1 year'")


def until(condition, seconds=30):
    """Wait until `condition()` is true; returns what it answered."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return answer


def check_storage(connection):
    """Every message is whole, and every index has every row."""
    torn = """SELECT count(*) FROM outbox.envelope
                FULL JOIN (SELECT seq FROM outbox.delivery
                            UNION ALL
                           SELECT unnest(coalesce(seqs, ARRAY (SELECT generate_series(first, last)))) FROM outbox.receipt)
                          AS rest USING (seq)
               WHERE envelope.id IS NULL OR rest.seq IS NULL"""
    assert one(connection, torn) == 0
    assert one(connection, "SELECT count(*) = count(DISTINCT id) FROM outbox.message")
    connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck WITH SCHEMA public")
    connection.execute(
        """SELECT public.bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE relnamespace = 'outbox'::regnamespace
              AND relam = (SELECT oid FROM pg_am WHERE amname = 'btree')"""
    )


def sqlstate(connection, function, *arguments, **named):
    """The SQLSTATE a call ends with; the transaction is open or not as before."""
    with pytest.raises(psycopg.Error) as raised:
        rows(connection, function, *arguments, **named)
    return raised.value.sqlstate
