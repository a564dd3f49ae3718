"""Random calls from many sessions, judged afterwards by a model of one message: the contract's invariants 1 to 7.

Each player makes calls alone or several to a transaction, in any isolation level, with savepoints, half of them
rolled back. Every call is noted with its answer, its time and its transaction. Afterwards the commit times
(track_commit_timestamp) put the calls that counted into their one order, and the model replays it for each message:
what an answer says must be what the model would have said. A call that did not count (a stale token, a message that
was not dead) wrote nothing and has no place in that order; it must be true of some moment while it ran.

--seed repeats the choices (not the interleaving), --seconds makes the run longer.
"""

import collections
import contextlib
import random
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone

import psycopg
from conftest import check_storage, rows, states
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


# -- the judge -----------------------------------------------------------------------------------


class Message:
    """The model: what the contract says one message is, after each call that counted."""

    def __init__(self):
        self.state, self.attempts, self.token, self.until, self.due, self.payload = "absent", 0, None, None, None, None
        # From when on everybody saw that it began, till when nobody can have seen that it was over:
        self.holders = []  # (token, from, till, end of the lease if it was the last allowed)
        self.deaths = []  # (from, till)

    def has_run_out_for_good(self, by):
        return self.state == "leased" and self.attempts >= LIMIT and self.until <= by

    def play(self, call, at):
        getattr(self, call.function)(call, at)

    def append(self, call, at):
        if self.state == "absent":
            self.state, self.due, self.payload = "ready", call.due, call.payload

    def claim(self, call, at):
        assert self.state in ("ready", "waiting", "leased"), f"delivered when {self.state}"
        assert self.state != "leased" or self.until <= call.ended, "leased twice at once"
        assert self.due is None or self.due - EARLY <= call.ended, "delivered before it was due"
        assert call.attempts == self.attempts + 1, f"attempts were {self.attempts}"
        assert call.attempts <= LIMIT, "attempts over the limit"
        assert call.payload == self.payload, "another payload"
        self.let_go(at)
        self.state, self.attempts, self.token, self.until = "leased", call.attempts, call.token, call.until
        self.since = call.transaction.over

    def let_go(self, at):
        if self.token is not None:
            self.holders.append((self.token, self.since, at, self.until if self.attempts >= LIMIT else None))
        self.token = self.due = None

    def current(self, call):
        assert self.state == "leased" and self.token == call.token, f"accepted though the message was {self.state}"

    def complete(self, call, at):
        self.current(call)
        self.let_go(at)
        self.state = "delivered"

    def fail(self, call, at):
        self.current(call)
        assert call.answer == ("dead" if self.attempts >= LIMIT else "waiting")
        self.let_go(at)
        self.state, self.due, self.since = call.answer, call.due, call.transaction.over
        if self.state == "dead":
            self.due = None

    def abandon(self, call, at):
        self.current(call)
        self.let_go(at)
        self.state, self.since = "dead", call.transaction.over

    def release(self, call, at):
        self.current(call)
        self.let_go(at)
        self.state, self.attempts = "ready", self.attempts - 1

    def extend(self, call, at):
        self.current(call)
        self.until = call.until

    def retry_dead(self, call, at):
        assert self.state == "dead" or self.has_run_out_for_good(call.ended), f"revived when {self.state}"
        self.let_go(at)
        if self.state == "dead":
            self.deaths.append((self.since, at))
        self.state, self.attempts = "ready", 0

    def close(self):
        """No more calls."""
        state, token = self.state, self.token
        end = datetime.max.replace(tzinfo=timezone.utc)
        self.let_go(end)
        if state == "dead":
            self.deaths.append((self.since, end))
        return token


def commit_times(db, transactions):
    xids = [t.xid for t in transactions if t.committed and t.xid]
    query = "SELECT x, pg_xact_commit_timestamp(x::xid) FROM unnest(%s::text[]) AS x"
    return dict(db.execute(query, [xids]).fetchall())


def may_have_been_stale(call, model, touched):
    """The token was not the current one at some moment of the call."""
    if touched:
        return True  # by the same transaction, whose changes have no time yet
    for token, since, to, out in model.holders:
        if token == call.token and since < call.began and call.ended < to:
            return out is not None and out <= call.ended  # its death may have been recorded
    return True


def may_have_been_alive(call, model, touched):
    return touched or not any(since < call.began and call.ended < to for since, to in model.deaths)


def judge(db, world):
    """Replays everything; returns the models."""
    times = commit_times(db, world.transactions)
    counted, others = collections.defaultdict(list), []
    consumed = collections.Counter()
    for transaction in world.transactions:
        for call in transaction.calls:
            if call.function == "consume_once":
                consumed[call.consumer, call.message] += call.counted and transaction.committed and not call.undone
            elif not call.counted:
                others.append(call)
            elif transaction.committed and not call.undone:
                counted[call.message].append((times[transaction.xid], call.place, call))
    models = {}
    for message, calls in counted.items():
        model = models[message] = Message()
        calls.sort(key=lambda entry: entry[:2])
        for at, _, call in calls:
            try:
                model.play(call, at)
            except AssertionError as violation:
                history = "\n".join(f"{at.time()} {c}" for at, _, c in calls)
                raise AssertionError(f"{violation}: {message}\n{call}\nhistory:\n{history}") from None
    final = {message: (model.state, model.attempts, model.until) for message, model in models.items()}
    for model in models.values():
        model.close()
    for call in others:
        model = models.get(call.message)
        if model is None:  # its append was rolled back
            continue
        earlier = call.transaction.calls[: call.place]
        touched = any(c.message == call.message and c.counted for c in earlier)
        judged = may_have_been_alive if call.function == "retry_dead" else may_have_been_stale
        if not judged(call, model, touched):
            history = "\n".join(f"{at.time()} {c}" for at, _, c in counted[call.message])
            raise AssertionError(f"wrongly refused: {call.message}\n{call}\nhistory:\n{history}")
    assert all(count <= 1 for count in consumed.values()), "consumed twice"
    markers = set(db.execute("SELECT consumer, message_id FROM outbox.processed").fetchall())
    assert markers == {key for key, count in consumed.items() if count}
    return final


def check_the_view(db, final):
    """The view and the model agree on every message, and on which there are."""
    earliest = now()
    stored = {row[0]: row[1:] for row in db.execute("SELECT id, state, attempts FROM outbox.message")}
    latest = now()
    absent = {message for message, (state, *_) in final.items() if state == "absent"}
    assert not absent
    assert set(stored) == set(final), "a committed append is missing, or an aborted one there"
    for message, (state, attempts, until) in final.items():
        seen, seen_attempts = stored[message]
        if state == "leased" and until <= (earliest if seen == "leased" else latest):
            state = "dead" if attempts >= LIMIT else "ready"
        if state == "waiting" and seen == "ready":  # due by now
            state = "ready"
        if state == "ready" and seen == "waiting":  # appended for later
            state = "waiting"
        assert (seen, seen_attempts) == (state, attempts), message


def deliver_the_rest(db):
    while set(states(db).values()) - {"delivered", "dead"}:
        leased = rows(db, "claim", "rest", batch_size=500, wait_seconds=1)
        assert all(answer.completed for answer in rows(db, "complete_batch", [m.token for m in leased]))


def test_every_answer_is_what_the_model_says(server, database, db, request, seed):
    world, chance = World(seed), random.Random(seed)
    deadline = time.monotonic() + request.config.getoption("--seconds")
    players = [
        Player(world, server.connect(database, autocommit=True), chance.random(), deadline) for _ in range(PLAYERS)
    ]
    for player in players:
        player.join(timeout=request.config.getoption("--seconds") + 60)
        assert not player.is_alive(), "a call never ended"
    assert world.surprises == []
    final = judge(db, world)
    time.sleep(0.1)
    check_the_view(db, final)
    deliver_the_rest(db)
    assert set(states(db)) == set(final)
    functions = collections.Counter(
        (call.function, call.counted) for t in world.transactions for call in t.calls if t.committed
    )
    print(functions)
    assert all(functions[f, counted] > 10 for f in (*ONE_ANSWER, "extend", "retry_dead") for counted in (True, False))
    check_storage(db)
