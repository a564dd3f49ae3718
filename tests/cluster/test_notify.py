"""outbox.notify: a process of its own tells those who LISTEN, on channel outbox with the topic as payload, that there is
something to claim; seldom, outside the transactions that append, which neither fail nor wait because of it.
"""

import contextlib
import os
import signal
import time

import psycopg
import pytest
from conftest import append, claim, one, rows, until, value
from server import Server

CONF = {"outbox.notify": True, "max_prepared_transactions": 4, "max_worker_processes": 6}
SOON = 3
DEBOUNCE = 0.02
NOTIFIERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox notifier'"


class Listener:
    def __init__(self, connection):
        self.connection, self.heard = connection, []
        connection.execute("LISTEN outbox")

    def hear(self, seconds=SOON):
        """The payload of the next notification; None if there is none."""
        if not self.heard:
            self.receive(seconds, stop_after=1)
        return self.heard.pop(0) if self.heard else None

    def hear_all(self, seconds):
        self.receive(seconds)
        heard, self.heard = self.heard, []
        return heard

    def receive(self, seconds, **options):
        for notify in self.connection.notifies(timeout=seconds, **options):
            assert notify.channel == "outbox"
            self.heard.append(notify.payload)


@pytest.fixture
def listener(server, database):
    with server.connect(database, autocommit=True) as connection:
        yield Listener(connection)


def notifier(db):
    """The process id of this database's notifier."""
    pid = "SELECT max(pid) FROM pg_stat_activity WHERE backend_type = 'outbox notifier' AND datname = current_database()"
    return one(db, pid)


def test_a_commit_is_announced_and_a_rollback_is_not(server, database, db, listener):
    with server.connect(database) as producer:
        append(producer)
        assert listener.hear(0.3) is None
        producer.rollback()
        append(producer, topic="mail")
        producer.commit()
    assert listener.hear() == "mail"
    assert listener.hear(0.3) is None


def test_batches_and_names_of_all_kinds(db, listener):
    for topic in "orders", " a b ", "ÄÖÜ 中文 😀", "quote ' \" \\ $$", "x" * 255:
        rows(db, "append_batch", topic, '[{"type": "t", "payload": 1}, {"type": "t", "payload": 2}]')
        assert listener.hear() == topic
    assert listener.hear(0.3) is None


def test_a_returned_message_is_announced(server, database, db, listener):
    append(db)
    assert listener.hear() == "orders"

    def release():
        assert value(db, "release", claim(db)[0].token)

    def fail():
        assert value(db, "fail", claim(db)[0].token, "no", "2020-01-01") == "waiting"

    def retry():
        (message,) = claim(db)
        assert value(db, "abandon", message.token)
        assert value(db, "retry_dead", message.id)

    def roll_back():
        with db.transaction(force_rollback=True):
            assert len(claim(db)) == 1

    for give_back in release, fail, retry, roll_back:
        give_back()
        assert listener.hear() == "orders"
    (message,) = claim(db)
    value(db, "complete", message.token)
    assert listener.hear(0.3) is None


def test_a_delayed_message_is_announced_when_it_is_due(db, listener):
    due = one(db, "SELECT clock_timestamp() + interval '1 s'")
    append(db, available_at=due)
    append(db, topic="much later", available_at="2100-01-01")
    assert listener.hear() == "orders"
    late = one(db, "SELECT extract(epoch FROM clock_timestamp() - %s)::float8", due)
    assert 0 <= late < 0.5
    assert listener.hear(0.5) is None


def test_messages_that_came_due_without_a_notifier_are_announced_first(server, database, db, listener):
    server.reload(**{"outbox.notify": False})
    until(lambda: one(db, "SHOW outbox.notify") == "off")
    append(db, topic="forgotten", available_at=one(db, "SELECT clock_timestamp() + interval '0.1 s'"))
    time.sleep(0.2)
    server.reload(**{"outbox.notify": True})
    until(lambda: one(db, "SHOW outbox.notify") == "on")
    append(db)
    assert {listener.hear(), listener.hear()} == {"forgotten", "orders"}


def test_many_commits_are_few_announcements_and_the_last_is_not_lost(db, listener):
    started = time.monotonic()
    for n in range(1000):
        append(db, topic=f"topic {n % 2}")
    seconds = time.monotonic() - started
    heard = listener.hear_all(1)
    assert 2 <= len(heard) <= 2 * (seconds / DEBOUNCE + 2)
    (_,) = claim(db, "topic 0", batch_size=1)
    append(db, topic="topic 0")
    assert listener.hear() == "topic 0"


def test_more_topics_than_are_kept_apart_are_announced_as_any(db, listener):
    with db.transaction():
        for n in range(200):
            append(db, topic=f"topic {n}")
    heard = listener.hear_all(1)
    assert "" in heard and 64 <= len(heard) <= 66
    append(db)
    assert listener.hear() == "orders"


def test_each_database_has_its_own(server, db, listener):
    server.createdb("neighbour", extension="outbox")
    with server.connect("neighbour", autocommit=True) as there:
        neighbour = Listener(there)
        append(db)
        assert listener.hear() == "orders"
        with server.connect("neighbour", autocommit=True) as producer:
            append(producer, topic="there")
        assert neighbour.hear() == "there"
        assert neighbour.hear(0.3) is None and listener.hear(0.3) is None
        assert one(db, NOTIFIERS) == 2
    server.psql("DROP DATABASE neighbour")  # the notifier makes way
    assert one(db, NOTIFIERS) == 1


def test_a_transaction_that_was_prepared_can_be_and_takes_no_lock_of_notify(server, database, db, listener):
    append(db)
    assert listener.hear() == "orders"
    with server.connect(database, autocommit=True) as producer:
        producer.execute("BEGIN")
        append(producer, topic="prepared")
        listening = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'object'"
        assert one(db, listening, producer.info.backend_pid) == 0
        producer.execute("PREPARE TRANSACTION 'notify'")
    db.execute("COMMIT PREPARED 'notify'")
    assert [m.topic for m in claim(db, "prepared")] == ["prepared"]


def test_a_notifier_that_hangs_or_dies_delays_no_session(db, listener):
    append(db)
    assert listener.hear() == "orders"
    hanging = notifier(db)
    os.kill(hanging, signal.SIGSTOP)
    try:
        started = time.monotonic()
        for n in range(200):
            append(db, topic=f"topic {n % 3}")
        assert time.monotonic() - started < SOON
        assert listener.hear(0.3) is None
        assert one(db, "SELECT pg_terminate_backend(%s)", hanging)
    finally:
        os.kill(hanging, signal.SIGCONT)
    until(lambda: notifier(db) != hanging)
    append(db)
    assert "orders" in listener.hear_all(1)
    assert notifier(db) not in (None, hanging)


def test_without_a_free_process_no_announcement_and_no_failure(db, server, database):
    """All of max_worker_processes taken."""
    with contextlib.ExitStack() as stack:
        for n in range(6):
            server.createdb(f"taken {n}", extension="outbox")
            other = stack.enter_context(server.connect(f"taken {n}", autocommit=True))
            append(other)
        listener = Listener(stack.enter_context(server.connect(database, autocommit=True)))
        append(db)
        assert listener.hear(0.5) is None
        assert len(claim(db)) == 1
    for n in range(6):
        server.psql(f'DROP DATABASE "taken {n}"')


def test_drop_extension_ends_it_and_a_new_one_starts_fresh(server, db, listener):
    append(db)
    assert listener.hear() == "orders"
    db.execute("DROP EXTENSION outbox")
    db.execute("CREATE EXTENSION outbox")
    append(db, topic="anew")
    assert listener.hear() == "anew"
    assert not [line for line in server.log().splitlines() if "ERROR" in line and "could not open relation" in line]


def test_the_setting_turns_it_off_and_on(server, db, listener):
    append(db)
    assert listener.hear() == "orders"
    server.reload(**{"outbox.notify": False})
    until(lambda: notifier(db) is None)
    append(db)
    assert listener.hear(0.3) is None
    server.reload(**{"outbox.notify": True})
    until(lambda: one(db, "SHOW outbox.notify") == "on")
    append(db)
    assert listener.hear() == "orders"
    with pytest.raises(psycopg.errors.CantChangeRuntimeParam):
        db.execute("SET outbox.notify = off")


def test_by_default_it_is_off_and_there_is_no_process():
    with Server() as server:
        server.createdb("app", extension="outbox")
        with server.connect("app", autocommit=True) as db:
            listener = Listener(db)
            append(db)
            assert listener.hear(0.5) is None
            assert one(db, NOTIFIERS) == 0


def test_a_fast_shutdown_ends_it_at_once(server, db, listener):
    """Last in this file: it stops the server."""
    append(db)
    assert listener.hear() == "orders"
    since = time.monotonic()
    server.stop("fast")
    assert time.monotonic() - since < 5
    server.start()
