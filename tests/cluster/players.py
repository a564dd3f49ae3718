"""Sessions that call at random, and what they note of each call: the players of the models."""

import contextlib
import random
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg.rows import namedtuple_row

LIMIT = 3
CONF = {
    "track_commit_timestamp": True,
    "shared_preload_libraries": "outbox",
    "outbox.purge_interval_seconds": 2,
    "outbox.max_attempts": LIMIT,
    "outbox.backoff_seconds": 1,
    "deadlock_timeout": "50ms",
    "max_connections": 40,
}
PLAYERS = 6
TOPICS = "a", "b", "c"
LEVELS = "READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"
RETRY = "40001", "40P01"  # serialization failure, deadlock: the caller's to retry
ONE_ANSWER = "complete", "fail", "release", "abandon"  # of these a token gets one
EARLY = timedelta(microseconds=1)


class Transaction:
    def __init__(self):
        self.xid, self.calls = None, []
        self.over = None  # when its COMMIT was known to have succeeded; everybody sees it from then on, or earlier

    @property
    def committed(self):
        return self.over is not None


class Call:
    """One message's part in one call."""

    def __init__(self, function, message, answer, transaction, began, ended, **details):
        self.function, self.message, self.answer = function, message, answer
        self.transaction, self.place = transaction, len(transaction.calls)
        self.began, self.ended = began, ended
        self.undone = False  # by a rollback to a savepoint
        self.token = self.attempts = self.until = self.due = self.payload = self.consumer = self.taken = None
        self.__dict__.update(details)
        transaction.calls.append(self)

    def __repr__(self):
        shown = {k: str(v) for k, v in self.__dict__.items() if v is not None and k not in ("message", "transaction")}
        return f"{self.transaction.xid}:{shown}"

    @property
    def counted(self):
        return self.answer not in (False, None)


def now():
    return datetime.now(timezone.utc)


class World:
    """What all players know together."""

    def __init__(self, seed):
        self.transactions, self.surprises = [], []
        self.owner = {}  # token: message
        self.tokens, self.ids, self.dead = [], [], []
        chance = random.Random(seed)
        self.shared_ids = [uuid.UUID(int=chance.getrandbits(128), version=4) for _ in range(300)]


class Player(threading.Thread):
    topics = TOPICS

    def __init__(self, world, connection, seed, deadline):
        super().__init__(daemon=True)
        self.world, self.db, self.deadline = world, connection, deadline
        self.chance = random.Random(seed)
        self.start()

    def run(self):
        try:
            while time.monotonic() < self.deadline:
                (self.alone if self.chance.random() < 0.5 else self.together)()
        except Exception as surprise:
            self.world.surprises.append(surprise)
            raise
        finally:
            self.db.close()

    def alone(self):
        with self.transaction() as transaction:
            self.play(transaction)
            transaction.over = now()

    def together(self):
        with self.transaction() as transaction:
            self.db.execute(f"BEGIN ISOLATION LEVEL {self.chance.choice(LEVELS)}")
            for _ in range(self.chance.randint(1, 4)):
                if self.chance.random() < 0.3:
                    self.db.execute("SAVEPOINT s")
                    first = len(transaction.calls)
                    self.play(transaction)
                    if self.chance.random() < 0.5:
                        self.db.execute("ROLLBACK TO s")
                        for call in transaction.calls[first:]:
                            call.undone = True
                else:
                    self.play(transaction)
            if self.chance.random() < 0.7:
                self.db.execute("COMMIT")
                transaction.over = now()
            else:
                self.db.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self):
        transaction = Transaction()
        self.world.transactions.append(transaction)
        try:
            yield transaction
        except psycopg.Error as error:
            if error.sqlstate not in RETRY:
                raise
            if self.db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.db.execute("ROLLBACK")

    # -- the calls -----------------------------------------------------------------------------

    def ask(self, transaction, function, *arguments, **named):
        """The rows of a call, and when it began and ended."""
        places = ["%s"] * len(arguments) + [f"{name} => %s" for name in named]
        statement = f"SELECT *, pg_current_xact_id()::text AS xid FROM outbox.{function}({', '.join(places)})"
        began = now()
        with self.db.cursor(row_factory=namedtuple_row) as cursor:
            answer = cursor.execute(statement, [*arguments, *named.values()]).fetchall()
        if answer:
            transaction.xid = answer[0].xid
        return answer, began, now()

    def play(self, transaction):
        plays = {
            self.append: 20, self.append_batch: 4, self.claim: 30, self.answer: 35, self.complete_batch: 6,
            self.retry_dead: 6, self.consume_once: 5, self.purge: 1,
        }
        (play,) = self.chance.choices(list(plays), plays.values())
        play(transaction)

    def soon(self):
        """A time that is near or past, or none."""
        return self.chance.choice([None, None, now() - timedelta(1), now() + timedelta(seconds=self.chance.random())])

    def append(self, transaction):
        given = self.chance.choice([None, None, self.chance.choice(self.world.shared_ids)])
        payload, due = str(self.chance.getrandbits(40)), self.soon()
        topic = self.chance.choice(self.topics)
        ((message, _),), *times = self.ask(
            transaction, "append", topic, "t", payload, id=given, available_at=due
        )
        assert given in (None, message)
        Call("append", message, True, transaction, *times, payload=int(payload), due=due)
        self.world.ids.append(message)

    def append_batch(self, transaction):
        given = self.chance.sample(self.world.shared_ids, 2) + [None]
        self.chance.shuffle(given)
        payloads = [self.chance.getrandbits(40) for _ in given]
        elements = ", ".join(
            '{"type": "t", "payload": %s, "id": %s}' % (p, f'"{g}"' if g else "null") for g, p in zip(given, payloads)
        )
        answer, *times = self.ask(transaction, "append_batch", self.chance.choice(self.topics), f"[{elements}]")
        for (message, _), wanted, payload in zip(answer, given, payloads, strict=True):
            assert wanted in (None, message)
            Call("append", message, True, transaction, *times, payload=payload)
            self.world.ids.append(message)

    def claim(self, transaction):
        lease = self.chance.choice([1, 1, 2])
        answer, *times = self.ask(
            transaction, "claim", self.name, self.chance.choice([None, *self.topics]),
            batch_size=self.chance.randint(1, 6), lease_seconds=lease,
        )
        for row in answer:
            Call(
                "claim", row.id, True, transaction, *times,
                token=row.token, attempts=row.attempts, until=row.leased_until, payload=row.payload,
                taken=row.leased_until - timedelta(seconds=lease),
            )
            self.world.owner[row.token] = row.id
            self.world.tokens.append(row.token)

    def token(self):
        recent = self.world.tokens[-80:]
        return self.chance.choice(recent) if recent else uuid.uuid4()

    def answer(self, transaction):
        token = self.token()
        function = self.chance.choice(["complete"] * 4 + ["fail"] * 4 + ["release"] * 2 + ["extend"] * 2 + ["abandon"])
        details = {"token": token}
        arguments = {}
        if function == "fail":
            arguments = {"error": "no", "retry_at": self.soon()}
        if function == "extend":
            arguments = {"lease_seconds": self.chance.choice([1, 2])}
        ((answer, _),), *times = self.ask(transaction, function, token, **arguments)
        message = self.world.owner.get(token)
        if function == "extend":
            details["until"] = answer
        if function == "fail":
            details["due"] = arguments["retry_at"] or times[0] + timedelta(seconds=1)
        if answer == "dead" or (answer and function == "abandon"):
            self.world.dead.append(message)
        Call(function, message, answer, transaction, *times, **details)

    def complete_batch(self, transaction):
        tokens = [self.token() for _ in range(self.chance.randint(1, 5))]
        answer, *times = self.ask(transaction, "complete_batch", tokens)
        for wanted, (token, completed, _) in zip(tokens, answer, strict=True):
            assert wanted == token
            Call("complete", self.world.owner.get(token), completed, transaction, *times, token=token)

    def retry_dead(self, transaction):
        among = self.chance.choice([self.world.dead, self.world.ids])[-60:]
        if among:
            message = self.chance.choice(among)
            ((answer, _),), *times = self.ask(transaction, "retry_dead", message)
            Call("retry_dead", message, answer, transaction, *times)

    def consume_once(self, transaction):
        message, consumer = self.chance.choice(self.world.shared_ids), self.chance.choice("xy")
        ((answer, _),), *times = self.ask(transaction, "consume_once", consumer, message)
        Call("consume_once", message, answer, transaction, *times, consumer=consumer)

    def purge(self, transaction):
        ((purged, _),), *_ = self.ask(transaction, "purge")
        assert purged == 0  # nothing is old enough
