"""A crash under load loses nothing that was committed, invents nothing, and hands no message to two workers at once.

Producers append together with a business row, workers claim and answer, all from connections of their own and faster
than they can be followed; in the midst of it every process of the server is killed. After each restart, and after the
rest has been delivered, the books must balance.
"""

import collections
import contextlib
import itertools
import random
import threading
import time
import uuid

import psycopg
from conftest import append, check_storage, claim, long_ago, one, rows, until, value
from server import Server

CONF = {
    "fsync": True,
    "shared_preload_libraries": "outbox",
    "outbox.purge_interval_seconds": 1,
    "outbox.max_attempts": 4,
    "max_connections": 30,
}
PRODUCERS, WORKERS = 4, 4
LEASE = 1


class Lease:
    """What a worker knows of a message it was given: times are those of this machine's clock."""

    def __init__(self, message, asked, got):
        self.id, self.token, self.attempts = message.id, message.token, message.attempts
        self.asked, self.got = asked, got
        self.until = message.leased_until.timestamp()
        self.answered = None  # when an answer was sent that counted, or may have

    def may_follow(self, other):
        return self.got >= min(other.until, other.answered or other.until)


class Books:
    def __init__(self):
        self.committed, self.aborted, self.unknown = set(), set(), set()
        self.leases, self.completed, self.surprises = [], {}, []


class Client(threading.Thread):
    """Repeats `step` until the server is gone."""

    def __init__(self, server, books, seed):
        super().__init__(daemon=True)
        self.connection = server.connect("app", autocommit=True)
        self.books, self.random = books, random.Random(seed)
        self.start()

    def run(self):
        try:
            while True:
                self.step(self.connection)
        except psycopg.OperationalError:
            self.connection.close()
        except Exception as surprise:
            self.books.surprises.append(surprise)


class Producer(Client):
    def step(self, db):
        end = self.random.choice(["COMMIT"] * 7 + ["ROLLBACK"] * 2 + ["ROLLBACK TO s; COMMIT"])
        given = uuid.uuid4() if self.random.random() < 0.5 else None
        db.execute("BEGIN; SAVEPOINT s")
        message = append(db, id=given)
        db.execute("INSERT INTO business VALUES (%s)", [message])
        (self.books.unknown if end == "COMMIT" else self.books.aborted).add(message)
        db.execute(end)
        if end == "COMMIT":
            self.books.committed.add(message)


class Worker(Client):
    def step(self, db):
        asked = time.time()
        messages = claim(db, batch_size=self.random.randint(1, 10), lease_seconds=LEASE, wait_seconds=1)
        leases = [Lease(message, asked, time.time()) for message in messages]
        self.books.leases += leases
        if self.random.random() < 0.05:
            time.sleep(1.2 * LEASE)  # too late
        for lease in leases:
            self.answer(db, lease)

    def answer(self, db, lease):
        kind = self.random.choice(["complete"] * 14 + ["fail"] * 3 + ["release", "abandon", "extend", "forget"])
        if kind == "forget":
            return
        if kind == "extend":
            until = value(db, "extend", lease.token, LEASE)
            lease.until = until.timestamp() if until else lease.until
            return
        lease.answered = time.time()  # unless the answer says it did not count
        if kind == "complete":
            counted = self.complete(db, lease)
        elif kind == "fail":
            counted = value(db, "fail", lease.token, "no", "2020-01-01") is not None
        else:
            counted = value(db, kind, lease.token)
        if not counted:
            lease.answered = None

    def complete(self, db, lease):
        """With its effect, in one transaction."""
        db.execute("BEGIN")
        if value(db, "consume_once", "worker", lease.id):
            db.execute("INSERT INTO effect VALUES (%s)", [lease.id])
        counted = value(db, "complete", lease.token)
        db.execute("COMMIT" if counted else "ROLLBACK")
        if counted:
            self.books.completed[lease.token] = (lease.id, time.time())
        return counted


def run_until_crash(server, books, chance):
    clients = [Producer(server, books, chance.random()) for _ in range(PRODUCERS)]
    clients += [Worker(server, books, chance.random()) for _ in range(WORKERS)]
    time.sleep(chance.uniform(1, 2.5))
    server.kill9()
    for client in clients:
        client.join(timeout=30)
        assert not client.is_alive()
    server.start()


def check_what_is_stored(db, books):
    assert books.surprises == []
    stored = {row[0] for row in db.execute("SELECT id FROM outbox.message")}
    business = {row[0] for row in db.execute("SELECT id FROM business")}
    assert stored == business, "message and business row go together"
    assert books.committed <= stored, "committed, and lost"
    assert not books.aborted & stored, "rolled back, and there"
    assert stored <= books.committed | books.unknown
    check_storage(db)


def check_what_was_delivered(db, books):
    of_message = collections.defaultdict(list)
    for lease in books.leases:
        of_message[lease.id].append(lease)
    assert len({lease.token for lease in books.leases}) == len(books.leases), "a token came twice"
    for message, leases in of_message.items():
        assert message in books.committed | books.unknown, "an aborted append was delivered"
        for one_lease, other in itertools.combinations(leases, 2):
            apart = one_lease.may_follow(other) or other.may_follow(one_lease)
            assert apart, f"{message} was leased twice at once"
        assert all(lease.attempts <= CONF["outbox.max_attempts"] for lease in leases)
    done = collections.Counter(message for message, _ in books.completed.values())
    assert all(count == 1 for count in done.values()), "completed twice"
    for message, at in books.completed.values():
        assert all(lease.asked <= at for lease in of_message[message]), "delivered again after it was completed"
    state = dict(db.execute("SELECT id, state FROM outbox.message").fetchall())
    assert all(state[message] == "delivered" for message in done)
    effects = collections.Counter(row[0] for row in db.execute("SELECT id FROM effect"))
    assert all(count == 1 for count in effects.values()), "an effect came twice"
    assert set(done) <= set(effects)


def deliver_the_rest(db):
    while one(db, "SELECT count(*) FROM outbox.message WHERE state IN ('ready', 'leased', 'waiting')"):
        tokens = [message.token for message in claim(db, batch_size=500, wait_seconds=1)]
        assert all(done for _, done in rows(db, "complete_batch", tokens))


def test_the_books_balance_after_crashes(request, seed):
    chance, books = random.Random(seed), Books()
    rounds = request.config.getoption("--rounds")
    with Server(conf=CONF) as server:
        server.createdb("app", extension="outbox")
        server.psql("CREATE TABLE business (id uuid PRIMARY KEY); CREATE TABLE effect (id uuid)", "app")
        for _ in range(rounds):
            run_until_crash(server, books, chance)
            with server.connect("app", autocommit=True) as db:
                check_what_is_stored(db, books)
        with server.connect("app", autocommit=True) as db:
            deliver_the_rest(db)
            check_what_is_stored(db, books)
            check_what_was_delivered(db, books)
            assert len(books.completed) > 20 * rounds, "there was hardly any load"
            long_ago(db)
            while value(db, "purge"):
                pass
            assert one(db, "SELECT count(*) FROM outbox.message") == 0


def test_an_unacknowledged_claim_is_not_lost():
    """Killed between claim and answer: the lease runs out and the message is delivered by somebody else."""
    with Server(conf=CONF) as server:
        server.createdb("app", extension="outbox")
        with contextlib.closing(server.connect("app", autocommit=True)) as db:
            committed = [append(db, payload=str(n)) for n in range(3)]
            (leased,) = claim(db, batch_size=1, lease_seconds=LEASE)
            db.execute("BEGIN")
            assert [m.id for m in claim(db, batch_size=1)] == committed[1:2]
            append(db)  # never commits
            server.kill9()
        server.start()
        with server.connect("app", autocommit=True) as db:
            found = {}
            until(lambda: found.update({m.id: m for m in claim(db)}) or len(found) == 3)
            assert {message: found[message].attempts for message in found} == dict(zip(committed, (2, 1, 1)))
            assert not value(db, "complete", leased.token)
            assert value(db, "complete", found[leased.id].token)
            assert one(db, "SELECT count(*) FROM outbox.message") == 3


def test_prepared_transactions_survive_a_crash():
    with Server(conf={**CONF, "max_prepared_transactions": 4}) as server:
        server.createdb("app", extension="outbox")
        with contextlib.closing(server.connect("app", autocommit=True)) as db:
            for name in "kept", "gone":
                db.execute("BEGIN")
                append(db, topic=name)
                db.execute(f"PREPARE TRANSACTION '{name}'")
            delivered = append(db, topic="held")
            (held,) = claim(db, "held")
            db.execute("BEGIN")
            assert value(db, "complete", held.token)
            assert value(db, "consume_once", "mail", delivered)
            db.execute("PREPARE TRANSACTION 'answer'")
            server.kill9()
        server.start()
        with server.connect("app", autocommit=True) as db:
            assert claim(db) == []
            db.execute("COMMIT PREPARED 'kept'")
            db.execute("ROLLBACK PREPARED 'gone'")
            assert [m.topic for m in claim(db)] == ["kept"]
            db.execute("COMMIT PREPARED 'answer'")
            assert not value(db, "complete", held.token)
            assert not value(db, "consume_once", "mail", delivered)
            assert one(db, "SELECT count(*) FROM outbox.message WHERE state = 'delivered'") == 1
