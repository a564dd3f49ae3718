"""The sessions of test_torture.py: what each does again and again, and what all of them know together."""

import collections
import random
import subprocess
import threading
import time
from datetime import timedelta

import psycopg
import test_keys_model
import players
from conftest import rows, value
from observer import cpu
from players import Call, Transaction, now

TOPICS, CHANGING = test_keys_model.TOPICS, test_keys_model.CHANGING
HOLDERS, APPENDS = 12, 30  # sessions; appends a second of the one that appends steadily
HOLD, EPOCH = 5.0, 15  # seconds: a transaction stays open at most; a key is in use
REST = 0.6  # seconds; of a worker after it has got something
BATCH = 6  # of a worker's claim
VAIN = 20  # times that wait may be wrong: others were faster
HISTORY = 25  # calls that are shown of a key that is stuck
TOLD = 5  # of each kind of wrong


class World(players.World):
    """What all sessions know together; and what has gone wrong."""

    def __init__(self, seed, server, database):
        super().__init__(seed)
        self.server, self.database = server, database
        self.prepared = []  # (when it is to end, its name, the transaction, whether it commits)
        self.wrong = collections.Counter()
        self.end, self.rest = threading.Event(), threading.Event()  # of the holding; of everything
        self.began = time.monotonic()
        self.races = collections.Counter()
        self.pg_repack = None  # the program, where it is used
        self.one_tool = threading.Lock()

    def connect(self, name):
        return self.server.connect(self.database, autocommit=True, application_name=name)

    def went_wrong(self, kind, detail=""):
        """Of each kind the first few are told."""
        self.wrong[kind] += 1
        if self.wrong[kind] <= TOLD:
            print(f"{time.monotonic() - self.began:7.1f} s  WRONG: {kind}: {detail}", flush=True)

    def history(self, messages):
        """The last calls on these messages, those of transactions that were rolled back or are open too."""
        calls = [(c.began, c.ended, messages[c.message], c) for t in list(self.transactions) for c in list(t.calls) if c.message in messages]
        for began, ended, seq, call in sorted(calls, key=lambda one: one[:3])[-HISTORY:]:
            over = call.transaction.over.time() if call.transaction.over else "not committed"
            undone = ", to a savepoint" * call.undone
            yield f"    {began.time()} {ended.time()} {seq} {call.function} {call.answer} in {call.transaction.xid}: {over}{undone}"

    def key(self, chance):
        letter = chance.choice("klmn-")
        return None if letter == "-" else f"{letter}{int(time.monotonic() - self.began) // EPOCH}"


class Session(threading.Thread):
    """Does something again and again until the end; an error that is none of a lost race is wrong."""

    LOST_RACE = "40001", "40P01"

    def __init__(self, world, name, seed):
        threading.Thread.__init__(self, daemon=True, name=name)
        self.world, self.chance = world, random.Random(seed)
        self.db = world.connect(name)
        self.start()

    def run(self):
        while not self.over():
            try:
                self.once()
            except psycopg.Error as error:
                self.world.races[error.sqlstate] += 1
                if error.sqlstate not in self.LOST_RACE:
                    self.world.went_wrong(f"{error.sqlstate}", f"{self.name}: {error}")
                if self.db.closed:
                    break
                if self.db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self.db.execute("ROLLBACK")
        self.db.close()

    def over(self):
        return self.world.end.is_set()


class Holder(Session, test_keys_model.KeyPlayer):
    """A few calls in a transaction that stays open."""

    def once(self):
        transaction = Transaction()
        self.world.transactions.append(transaction)
        alone = self.chance.random() < 0.2
        self.db.execute("BEGIN" if alone else f"BEGIN ISOLATION LEVEL {self.chance.choice(players.LEVELS)}")
        for _ in range(1 if alone else self.chance.randint(1, 4)):
            self.hold(0.3)
            self.perhaps_in_a_savepoint(transaction)
        self.hold(1)
        self.finish(transaction)

    def hold(self, share):
        if self.chance.random() < 0.5:
            self.world.end.wait(self.chance.random() * HOLD * share)

    def perhaps_in_a_savepoint(self, transaction):
        if self.chance.random() > 0.3:
            return self.play(transaction)
        self.db.execute("SAVEPOINT s")
        first = len(transaction.calls)
        self.play(transaction)
        self.hold(0.3)
        if self.chance.random() < 0.5:
            self.db.execute("ROLLBACK TO s")
            for call in transaction.calls[first:]:
                call.undone = True

    def finish(self, transaction):
        commits = self.chance.random() < 0.65
        if self.chance.random() < 0.3:
            name = f"{self.name}-{len(self.world.transactions)}-{self.chance.getrandbits(30)}"
            self.db.execute(f"PREPARE TRANSACTION '{name}'")
            self.world.prepared.append((time.monotonic() + self.chance.random() * HOLD, name, transaction, commits))
        else:
            self.db.execute("COMMIT" if commits else "ROLLBACK")
            transaction.over = now() if commits else None

    def play(self, transaction):
        plays = {
            self.append: 12, self.append_batch: 2, self.append_again: 6, self.claim: 25, self.claim_and_answer: 15, self.answer: 30,
            self.complete_batch: 8, self.retry_dead: 8, self.operate: 5,
        }  # fmt: skip
        (play,) = self.chance.choices(list(plays), plays.values())
        play(transaction)

    def append(self, transaction, id=None):
        payload, due = str(self.chance.getrandbits(40)), self.soon()
        topic, key = self.chance.choice(TOPICS), self.world.key(self.chance)
        ((message, _),), *times = self.ask(transaction, "append", topic, "t", payload, id=id, available_at=due, key=key)
        Call("append", message, True, transaction, *times, payload=int(payload), due=due)
        self.world.ids.append(message)

    def append_again(self, transaction):
        """An id that others use as well, at about the same time."""
        epoch = int(time.monotonic() - self.world.began) // 2
        shared = self.world.shared_ids
        self.append(transaction, shared[(epoch * 3 + self.chance.randrange(3)) % len(shared)])

    def append_batch(self, transaction):
        payloads = [self.chance.getrandbits(40) for _ in range(4)]
        keys = [self.world.key(self.chance) for _ in payloads]
        elements = ", ".join(
            '{"type": "t", "payload": %s, "key": %s}' % (p, f'"{k}"' if k else "null") for p, k in zip(payloads, keys)
        )
        answer, *times = self.ask(transaction, "append_batch", self.chance.choice(TOPICS), f"[{elements}]")
        for (message, _), payload in zip(answer, payloads, strict=True):
            Call("append", message, True, transaction, *times, payload=payload)
            self.world.ids.append(message)

    def claim_and_answer(self, transaction):
        first = len(self.world.tokens)
        self.claim(transaction)
        for token in self.world.tokens[first:][:3]:
            self.hold(0.1)
            self.answer(transaction, token)

    def answer(self, transaction, token=None):
        self.chosen = token
        super().answer(transaction)
        self.chosen = None

    chosen = None

    def token(self):
        return self.chosen or super().token()

    def operate(self, transaction):
        """On the topic of which only the end is judged."""
        play = self.chance.choice(["set_topic", "set_topic", "pause", "resume", "redrive"])
        setting = self.chance.choice(["block_on_dead", "block_on_dead", "max_attempts"])
        to = self.chance.choice(["true", "false", "null"] if setting == "block_on_dead" else ["1", "2", "null"])
        value(self.db, play, CHANGING, *['{"%s": %s}' % (setting, to)] * (play == "set_topic"))


class Worker(Session, test_keys_model.KeyPlayer):
    """Sleeps in claims, completes most of what it gets."""

    def __init__(self, world, number, topic, seed):
        self.topic, self.had_room_at = topic, 0  # when a claim last ended that could have taken more
        super().__init__(world, f"worker-{number}", seed)

    def over(self):
        return self.world.rest.is_set()

    def once(self):
        wait, lease = self.chance.choice([1, 1, 2, 3]), self.chance.choice([1, 1, 2])
        transaction = self.begin()
        arguments = {"batch_size": BATCH, "lease_seconds": lease, "wait_seconds": wait}
        worked = cpu(self.db)
        answer, *times = self.ask(transaction, "claim", self.name, self.topic, **arguments)
        self.notice(answer, wait, (times[1] - times[0]).total_seconds(), cpu(self.db) - worked)
        self.took(transaction, answer, times, lease)

    def took(self, transaction, answer, times, lease):
        self.note(transaction, answer, times, lease)
        transaction.over = now()
        if len(answer) < BATCH:
            self.had_room_at = time.monotonic()
        if answer:
            self.settle([row.token for row in answer])
            self.world.end.wait(self.chance.random() * REST)  # so that the others get some

    def begin(self):
        transaction = Transaction()
        self.world.transactions.append(transaction)
        return transaction

    def notice(self, answer, wait, took, cpu):
        if took > 1 and cpu > took / 3:
            self.world.went_wrong("a claim that waits is busy", f"{self.topic}, {cpu:.2f} of {took:.2f} s")
        if not answer and took < wait - 0.1:
            self.world.went_wrong("a claim that waits came back early and empty", f"{self.topic}, after {took:.2f} of {wait} s")
        if took > wait + (10 if self.world.pg_repack else 1.5):  # which locks whole tables
            self.world.went_wrong("a claim that waits took too long", f"{self.topic}, {took:.2f} instead of {wait} s")

    def settle(self, tokens):
        kept = []
        for token in tokens:
            fate = self.chance.random()
            if self.world.end.is_set() or fate < 0.75:
                kept.append(token)
            elif fate < 0.85:
                self.world.tokens.append(token)  # somebody may answer it, or its lease runs out
            else:
                self.chosen = token
                self.answer(transaction := self.begin())
                transaction.over = now()
        if kept:
            self.complete(transaction := self.begin(), kept)
            transaction.over = now()

    def note(self, transaction, answer, times, lease):
        for row in answer:
            details = {"token": row.token, "attempts": row.attempts, "until": row.leased_until, "payload": row.payload}
            details["taken"] = row.leased_until - timedelta(seconds=lease)
            Call("claim", row.id, True, transaction, *times, **details)
            self.world.owner[row.token] = row.id

    def complete(self, transaction, tokens):
        answer, *times = self.ask(transaction, "complete_batch", tokens)
        for token, completed, _ in answer:
            Call("complete", self.world.owner[token], completed, transaction, *times, token=token)

    def token(self):
        return self.chosen


class Caller(Worker):
    """The same with CALL wait, which says when there is something to claim."""

    vain = 0

    def once(self):
        wait, began = self.chance.choice([1, 2]), time.monotonic()
        self.db.execute("CALL outbox.wait(%s, %s)", [self.topic, wait])
        early = time.monotonic() - began < wait - 0.1
        answer, *times = self.ask(transaction := self.begin(), "claim", self.name, self.topic, batch_size=BATCH, lease_seconds=1)
        self.took(transaction, answer, times, 1)
        self.vain = self.vain + 1 if early and not answer else 0
        if self.vain >= VAIN:
            self.world.went_wrong("wait says there is something, claim gets nothing", f"{self.topic}, {VAIN} times in a row")
            self.vain = 0


class Hoarder(Worker):
    """Many messages, most of them claimed and completed in one transaction that stays open: they must hide nothing from the others."""

    MANY = 700

    def over(self):
        return self.world.end.is_set()

    def once(self):
        self.world.end.wait(self.chance.random() * 2 * HOLD)
        topic, keyed, mark = self.chance.choice(TOPICS[:2]), self.chance.random() < 0.5, self.chance.getrandbits(30)
        keys = [f'"{mark}-{i % (self.MANY // 2)}"' if keyed else "null" for i in range(self.MANY)]
        elements = ", ".join('{"type": "t", "payload": %d, "key": %s}' % one for one in enumerate(keys))
        answer, *times = self.ask(transaction := self.begin(), "append_batch", topic, f"[{elements}]")
        for payload, (message, _) in enumerate(answer):
            Call("append", message, True, transaction, *times, payload=payload)
        transaction.over = now()
        self.hoard(topic)

    def hoard(self, topic):
        transaction = self.begin()
        self.db.execute("BEGIN")
        tokens = []
        for _ in range(2):
            answer, *times = self.ask(transaction, "claim", self.name, topic, batch_size=500, lease_seconds=2 * int(HOLD))
            self.note(transaction, answer, times, 2 * int(HOLD))
            tokens += [row.token for row in answer]
        self.hold()
        self.complete(transaction, tokens)
        self.hold()
        commits = self.chance.random() < 0.7
        self.db.execute("COMMIT" if commits else "ROLLBACK")
        transaction.over = now() if commits else None

    def hold(self):
        self.world.end.wait(self.chance.random() * HOLD)


class Hammer(Session):
    """Single calls, each a transaction, on two keys of a topic in which the dead stand before the younger: no deadlock."""

    TOPIC = "hammered"
    LOST_RACE = ()

    def once(self):
        call = self.chance.choice(["append", "claim", "complete_batch", "fail", "abandon", "release", "retry_dead", "redrive", "purge"])
        tokens = self.chance.sample(self.world.tokens[-40:], min(5, len(self.world.tokens[-40:])))
        if call == "append":
            value(self.db, call, self.TOPIC, "t", "1", key=self.chance.choice("kl"))
        elif call == "claim":
            self.world.tokens += [row.token for row in rows(self.db, call, self.name, self.TOPIC, batch_size=20, lease_seconds=1)]
        elif call == "complete_batch":
            rows(self.db, call, tokens)
        elif call == "retry_dead":
            for (message,) in self.db.execute("SELECT id FROM outbox.message WHERE state = 'dead' LIMIT 1").fetchall():
                value(self.db, call, message)
        elif call in ("redrive", "purge"):
            value(self.db, call, *[self.TOPIC] * (call == "redrive"))
        elif tokens:
            value(self.db, call, tokens[0])


class Producer(Holder):
    """Single appends, steadily."""

    def once(self):
        self.world.transactions.append(transaction := Transaction())
        self.append(transaction)
        transaction.over = now()
        self.world.end.wait(self.chance.random() * 2 / APPENDS)


class Notary(Session):
    """Ends what is prepared, each when its time has come."""

    def over(self):
        return self.world.rest.is_set()

    def once(self):
        for entry in list(self.world.prepared):
            due, name, transaction, commits = entry
            if due < time.monotonic() or self.world.end.is_set():
                self.world.prepared.remove(entry)
                self.db.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{name}'")
                transaction.over = now() if commits else None
        time.sleep(0.02)


class Tables(Session):
    """What people and their tools do to tables."""

    INDEXES = """
        SELECT format('REINDEX INDEX CONCURRENTLY %s', indexrelid::regclass) FROM pg_index
         WHERE indisvalid AND indrelid = ANY ('{outbox.envelope,outbox.delivery,outbox.receipt}'::regclass[])"""
    LEFT_OVER = "SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %s', indexrelid::regclass) FROM pg_index WHERE NOT indisvalid"
    VACUUM = "VACUUM outbox.delivery", "VACUUM (FREEZE, ANALYZE) outbox.envelope, outbox.delivery, outbox.receipt", "ANALYZE"

    def once(self):
        if self.name == "vacuum":
            self.db.execute(self.chance.choice(self.VACUUM))
        else:
            with self.world.one_tool:  # not both on one table at once: pg_repack's own limit, see docs/operating.md
                self.rebuild()
        self.world.races[self.name] += 1
        self.world.end.wait(self.chance.random())

    def rebuild(self):
        if self.name == "repack" or self.chance.random() < 0.3:
            for (sql,) in self.db.execute(self.LEFT_OVER).fetchall():
                self.db.execute(sql)
        if self.name == "repack":
            self.repack(self.chance.choice(["envelope", "delivery", "receipt"]))
        else:
            self.db.execute(self.chance.choice([sql for (sql,) in self.db.execute(self.INDEXES)]))

    def repack(self, table):
        """As whoever uses it does; that it gives up under load is its good right."""
        server = self.world.server
        command = [self.world.pg_repack, "--no-kill-backend", "--wait-timeout=20", "--no-order", f"--table=outbox.{table}", self.world.database]
        done = subprocess.run(command, env=dict(server.env, LD_LIBRARY_PATH=server.libraries), capture_output=True, text=True)
        self.world.races["repack gave up"] += done.returncode != 0 or "WARNING" in done.stderr
