"""What a look of a claim finds, writes and holds: everything that can be had, whatever hides it; while the call sleeps,
nothing is locked; and claim, CALL wait and the next claim agree.
"""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest
from conftest import append, claim, one, rows, until, value

SOON = 3
PROMPT = 0.5
LAST = '{"max_attempts": 1}'


def many(db, count, key="NULL", topic="orders", due=None):
    """Appends so many messages; `key` is SQL over n."""
    db.execute(
        f"""SELECT count(outbox.append('{topic}', 't', to_jsonb(n), key => {key}, available_at => %s))
              FROM generate_series(1, {count}) AS n""",
        [due],
    )


def lease_all(db, seconds=1, size=500, topic="orders"):
    leased = []
    while found := claim(db, topic, batch_size=size, lease_seconds=seconds):
        leased += found
    return leased


def fail_all(db, topic="orders"):
    """Everything ready is due again, with one attempt used up."""
    for message in lease_all(db, 60, topic=topic):
        value(db, "fail", message.token, None, "2001-01-01")


class Sleeper(threading.Thread):
    """A session inside claim(wait_seconds), or CALL wait, again and again until it gets something or is stopped."""

    def __init__(self, server, database, topic="orders", seconds=10, again=False, **named):
        super().__init__(daemon=True)
        self.connection = server.connect(database, autocommit=True)
        self.pid, self.topic, self.seconds, self.again, self.named = (
            self.connection.info.backend_pid, topic, seconds, again, named,
        )  # fmt: skip
        self.messages, self.calls = [], 0
        self.start()

    def run(self):
        deadline = time.monotonic() + self.seconds
        while not self.messages and time.monotonic() < deadline:
            self.messages = claim(self.connection, self.topic, wait_seconds=self.seconds, **self.named)
            self.calls += 1
            if not self.again:
                break
        self.ended = time.monotonic()

    def cpu(self):
        """Seconds of processor time that its server process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_asleep(self, server):
        query = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {self.pid} AND wait_event_type = 'Extension'"
        return until(lambda: server.psql(query) == "1")

    def got(self, within=SOON):
        self.join(timeout=within)
        assert not self.is_alive(), f"nothing within {within} s"
        return [m.payload for m in self.messages]


@pytest.fixture
def sleeper(server, database):
    sleepers = []

    def start(*arguments, **named):
        sleepers.append(Sleeper(server, database, *arguments, **named))
        return sleepers[-1]

    yield start
    for one_of_them in sleepers:
        server.psql(f"SELECT pg_terminate_backend({one_of_them.pid})")
        one_of_them.join(timeout=5)


@pytest.fixture
def other(server, database):
    with server.connect(database) as connection:
        yield connection


# -- no window hides what is behind it ---------------------------------------------------------------


@pytest.mark.parametrize("wait", [0, 5])
def test_used_up_ones_hide_no_fresh_one(db, wait):
    many(db, 5000)
    fail_all(db)
    value(db, "set_topic", "orders", LAST)
    append(db, payload='"fresh"', available_at="2002-01-01")
    began = time.monotonic()
    assert [m.payload for m in claim(db, "orders", wait_seconds=wait)] == ["fresh"]
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("wait", [0, 5])
def test_due_ones_in_other_hands_hide_nothing(db, other, wait):
    many(db, 1100, due="2100-01-01")
    db.execute("UPDATE outbox.delivery SET available_at = '2001-01-01'")
    append(other, payload="1")
    assert sum(len(claim(other, "orders", batch_size=500)) for _ in range(2)) == 1000
    assert len(claim(db, "orders", batch_size=500, wait_seconds=wait)) == 100


@pytest.mark.parametrize("wait", [0, 5])
def test_keys_whose_head_is_being_completed_hide_nothing(db, other, wait):
    many(db, 600, "'k' || n")
    heads = lease_all(db, 60)
    many(db, 600, "'k' || n", due=one(db, "SELECT clock_timestamp() + interval '1 s'"))
    append(db, payload='"free"', available_at=one(db, "SELECT clock_timestamp() + interval '1 s'"))
    time.sleep(1.1)
    rows(other, "complete_batch", [m.token for m in heads])
    assert [m.payload for m in claim(db, "orders", wait_seconds=wait)] == ["free"]


# -- what sleeps holds nothing -----------------------------------------------------------------------


def locked_rows(db):
    db.execute("CREATE EXTENSION IF NOT EXISTS pgrowlocks WITH SCHEMA public")
    tables = "delivery", "topic", "envelope"
    return sum(one(db, f"SELECT count(*) FROM public.pgrowlocks('outbox.{table}')") for table in tables)


def ran_out(db, count, key="'a'", limit=None):
    many(db, count, key)
    if limit:
        value(db, "set_topic", "orders", limit)
    leased = claim(db, "orders", batch_size=500, lease_seconds=1)
    time.sleep(1.1)
    return leased


def test_a_sleeper_delays_no_session(server, db, other, sleeper):
    first, second = ran_out(db, 2)
    value(other, "complete", second.token)
    waiting = sleeper(seconds=20)
    waiting.is_asleep(server)
    time.sleep(1.2)
    waiting.is_asleep(server)
    other.rollback()
    held = "SELECT count(*) FROM pg_locks WHERE pid = %s AND relation::regclass::text LIKE 'outbox.%%'"
    value(other, "complete", second.token)  # it has looked again by now, perhaps
    db.execute("SET statement_timeout = '1s'")
    assert one(db, held, waiting.pid) == 0 or waiting.messages
    value(db, "extend", first.token)
    value(db, "pause", "orders")
    value(db, "set_topic", "orders", '{"lease_seconds": 60}')
    value(db, "complete", first.token)


@pytest.mark.parametrize("limit", [None, LAST], ids=["more", "last"])
@pytest.mark.parametrize("held", [slice(0, 1), slice(1, 2), slice(0, 3)])
def test_no_row_is_locked_while_a_call_sleeps(server, db, other, sleeper, limit, held):
    leased = ran_out(db, 3, limit=limit)
    for message in leased[held]:
        value(other, "complete", message.token)
    own = locked_rows(db)
    waiting = sleeper(seconds=20)
    for _ in range(3):
        time.sleep(0.4)
        waiting.is_asleep(server)
        assert waiting.messages == [] and locked_rows(db) == own
    other.rollback()
    value(db, "set_topic", "orders", '{"max_attempts": null}')
    assert 1 in waiting.got()


# -- claim, wait and the next claim agree ------------------------------------------------------------


def test_it_comes_back_early_only_with_rows(server, db, other, sleeper):
    leased = ran_out(db, 2)
    rows(other, "complete_batch", [m.token for m in leased])
    waiting = sleeper(seconds=3, again=True)
    waiting.join(timeout=6)
    assert waiting.messages == [] and waiting.calls == 1


@pytest.mark.parametrize("count", [1, 2, 250])
def test_no_processor_is_kept_busy_beside_an_open_answer(server, db, other, sleeper, count):
    leased = ran_out(db, count, "'k' || n", LAST)
    many(db, count, "'k' || n")
    rows(other, "complete_batch", [m.token for m in leased])
    waiting = sleeper(seconds=3, again=True)
    waiting.join(timeout=6)
    assert waiting.messages == [] and waiting.calls == 1 and waiting.cpu() < 0.5


def test_wait_says_only_what_a_claim_can_have(server, database, db, other):
    leased = ran_out(db, 3)
    many(db, 3, "'b'")
    deaths = ran_out(db, 2, "'c' || n", LAST)
    value(other, "complete", leased[1].token)
    value(other, "complete", deaths[0].token)
    value(other, "complete", deaths[1].token)
    claim(db, "orders", batch_size=500)
    said, deadline = 0, time.monotonic() + 2
    while time.monotonic() < deadline:
        began = time.monotonic()
        rows(db, "wait", "orders", 1)
        if time.monotonic() - began < 0.9:
            said += 1
            assert claim(db, "orders"), "it said that there was something"
    assert said < 10


def test_a_death_is_recorded_though_thousands_are_leased(db, sleeper, server):
    many(db, 3000)
    lease_all(db, 600)
    (head,) = ran_out(db, 1, limit=LAST)
    append(db, payload='"next"', key="a")
    began = time.monotonic()
    assert [m.payload for m in claim(db, "orders", wait_seconds=5)] == ["next"]
    assert time.monotonic() - began < SOON
    assert value(db, "complete", head.token) is False


def test_deaths_that_another_session_records_use_up_no_budget(server, db, other, sleeper):
    ran_out(db, 250, "'k' || n", LAST)
    many(db, 250, "'k' || n")
    assert len(claim(other, "orders", batch_size=120)) == 120
    got = []
    deadline = time.monotonic() + SOON
    while len(got) < 130 and time.monotonic() < deadline:
        got += claim(db, "orders", batch_size=50, wait_seconds=2)
    assert len(got) == 130


def test_the_end_of_a_head_wakes_a_session_that_waits_for_the_next(server, db, sleeper):
    many(db, 1, "'a'")
    (head,) = claim(db, "orders")
    many(db, 1, "'a'")
    waiting = sleeper(seconds=10)
    waiting.is_asleep(server)
    time.sleep(0.2)
    began = time.monotonic()
    assert value(db, "complete", head.token)
    waiting.got()
    assert waiting.ended - began < PROMPT
    assert one(db, "SELECT count(*) FROM outbox.delivery WHERE place = 'k'") == 0


def test_the_end_of_a_head_wakes_also_after_a_long_transaction(server, db, other, sleeper):
    many(db, 1, "'a'")
    (head,) = claim(db, "orders")
    many(db, 1, "'a'")
    value(other, "complete", head.token)
    waiting = sleeper(seconds=20)
    time.sleep(3.5)
    began = time.monotonic()
    other.commit()
    waiting.got()
    assert waiting.ended - began < PROMPT


def test_a_message_long_before_a_key_is_walked_over_no_more(db, other):
    """An open transaction holds the floor for a while, and not for what stands behind it."""
    many(db, 3000, "'k' || n")
    for _ in range(6):
        claim(other, "orders", batch_size=500)
    many(db, 3000, "'k' || n")
    for _ in range(4):
        claim(db, "orders")
        time.sleep(1.1)

    def pages():
        plan = db.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM outbox.claim('w', 'orders')").fetchone()[0]
        return plan[0]["Plan"]["Shared Hit Blocks"]

    assert min(pages() for _ in range(3)) < 200


# -- a client that is gone ---------------------------------------------------------------------------


def test_a_client_that_is_gone_gets_nothing(server, database, db):
    client = subprocess.Popen(
        [server.bin("psql"), "-X", "-d", database, "-c", "SELECT * FROM outbox.claim('gone', 'orders', wait_seconds => 60)"],
        env=server.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%''gone''%%' AND wait_event_type = 'Extension'"
    until(lambda: one(db, asleep) == 1)
    client.send_signal(signal.SIGKILL)
    client.wait()
    message = append(db)
    began = time.monotonic()
    assert [m.id for m in claim(db, "orders", wait_seconds=10)] == [message]
    assert time.monotonic() - began < SOON


# -- parked, and nothing before it -------------------------------------------------------------------


def orphan(db, key="'o'", topic="orders"):
    """What must not be, however it came about."""
    many(db, 1, key, topic)
    db.execute("UPDATE outbox.delivery SET place = 'k' WHERE place = 'r' AND lease IS NULL AND topic = %s", [topic])


@pytest.mark.parametrize("topic", ["orders", None])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_message_parked_for_nothing_is_freed(server, db, other, sleeper, topic, snapshot):
    if snapshot:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
    many(db, 1000, "'k' || n")
    assert len(lease_all(db, 60)) == 1000
    many(db, 1000, "'k' || n")
    assert claim(db, "orders") == []
    waiting = sleeper(topic, seconds=10)
    waiting.is_asleep(server)
    orphan(db)
    waiting.got()


def test_wait_and_claim_agree_on_messages_parked_for_nothing(db):
    parked = "SELECT ok FROM outbox.status WHERE name = 'parked'"
    assert one(db, parked)
    orphan(db)
    assert not one(db, parked)
    began = time.monotonic()
    rows(db, "wait", "orders", 5)
    assert time.monotonic() - began < SOON
    assert len(claim(db, "orders")) == 1
    assert one(db, parked)
