"""As test_model.py, with keys: random calls from many sessions, judged by a model of all messages of a key together.

What the model adds: when an older message goes back, the younger leases of its key go back with it, uncounted. And the
judge asks of every delivery: was there, all the while that the claim ran, an older message of its key that was to be
delivered and was not leased by the same claim (invariant 9)?

Two things are looked at while it runs, in any snapshot: no message is parked without an older one that is not over. And
afterwards everything can be delivered. For these one topic has block_on_dead set and reset all the time. In another one
it is set throughout, and the judge knows it: there the dead stand before the younger too, and a death sends their
leases back. Whose last lease has run out may be recorded as dead by any claim, or by none.
"""

import collections
import random
import subprocess
import threading
import time
from datetime import datetime, timezone

import players
import test_model
from conftest import check_storage, one, rows, states, value
from players import EARLY, LIMIT, PLAYERS, Call, Player, World, now
from test_model import Message, commit_times

CONF = players.CONF
KEYS = "k", "l", "m", "n", "o", None
TOPICS = *players.TOPICS, "d"
CHANGING, BLOCKING = "c", "d"
JUDGED = "a", "b", BLOCKING
FOR_EVER = datetime.max.replace(tzinfo=timezone.utc)
STUCK = """
    SELECT count(*) FROM outbox.delivery AS k
     WHERE k.place = 'k' AND NOT EXISTS (
           SELECT FROM outbox.delivery AS o LEFT JOIN outbox.topic AS t USING (topic)
            WHERE o.topic = k.topic AND o.key = k.key AND o.seq < k.seq AND (o.place <> 'x' OR t.block_on_dead))"""


class KeyPlayer(Player):
    topics = TOPICS

    def play(self, transaction):
        plays = {
            self.append: 8, self.append_batch: 1, self.claim: 30, self.answer: 35, self.complete_batch: 12,
            self.retry_dead: 4, self.purge: 1,
        }
        (play,) = self.chance.choices(list(plays), plays.values())
        play(transaction)

    def append(self, transaction):
        payload, due = str(self.chance.getrandbits(40)), self.soon()
        topic, key = self.chance.choice(TOPICS), self.chance.choice(KEYS)
        ((message, _),), *times = self.ask(transaction, "append", topic, "t", payload, available_at=due, key=key)
        Call("append", message, True, transaction, *times, payload=int(payload), due=due)
        self.world.ids.append(message)

    def append_batch(self, transaction):
        payloads = [self.chance.getrandbits(40) for _ in range(4)]
        elements = ", ".join(f'{{"type": "t", "payload": {p}, "key": "{self.chance.choice(KEYS[:5])}"}}' for p in payloads)
        answer, *times = self.ask(transaction, "append_batch", self.chance.choice(TOPICS), f"[{elements}]")
        for (message, _), payload in zip(answer, payloads, strict=True):
            Call("append", message, True, transaction, *times, payload=payload)
            self.world.ids.append(message)


class Operator(threading.Thread):
    """Sets and resets block_on_dead, and looks for what is stuck."""

    def __init__(self, connection, seed, deadline):
        super().__init__(daemon=True)
        self.db, self.chance, self.deadline = connection, random.Random(seed), deadline
        self.stuck, self.seen_parked = 0, 0
        self.start()

    def run(self):
        while time.monotonic() < self.deadline:
            value(self.db, "set_topic", CHANGING, '{"block_on_dead": %s}' % self.chance.choice(["true", "false", "null"]))
            for _ in range(20):
                self.stuck += one(self.db, STUCK)
                self.seen_parked += one(self.db, "SELECT count(*) FROM outbox.delivery WHERE place = 'k'")
                time.sleep(0.01)
        self.db.close()


# -- the judge -----------------------------------------------------------------------------------


class KeyedMessage(Message):
    """A message among those of its key."""

    def __init__(self, seq, dead_block):
        super().__init__()
        self.seq, self.dead_block = seq, dead_block
        self.lease = None  # the claim that has it
        self.blocking = []  # (from, till, claim that has it): surely to be delivered in between
        self.blocks_from = self.doubtful_from = None

    def note(self, call, at):
        """After each change: does it stand before the younger ones?"""
        if self.blocks_from is not None:
            till = min(at, self.dies_at) if self.dies_at else at
            self.blocking.append((self.blocks_from, till, self.lease))
        blocks = self.state in ("ready", "waiting", "leased") or self.dead_block and self.state in ("dead", "unsure")
        self.blocks_from = call.transaction.over if blocks else None
        self.dies_at = self.until if self.is_last() and not self.dead_block else None
        self.lease = claim_of(call) if self.state == "leased" else None

    dies_at = None

    def is_last(self):
        return self.state == "leased" and self.attempts >= LIMIT

    def sends_back(self, call, was):
        """The younger leases, by this change of it from state `was`."""
        if call.function == "claim":
            return was == "leased"
        dies = call.answer == "dead" or call.function == "abandon" or call.function == "retry_dead" and was == "leased"
        return call.function == "release" or call.answer == "waiting" or self.dead_block and dies

    def claim(self, call, at):
        if self.state == "unsure":
            self.state = "ready"
        super().claim(call, at)

    def retry_dead(self, call, at):
        if self.state == "unsure":
            self.state, self.attempts, self.since = "dead", LIMIT, call.began
        super().retry_dead(call, at)

    def go_back(self, call, at):
        """With an older one. If its last allowed lease had run out, somebody may have recorded its death before."""
        if self.state == "leased":
            state = "unsure" if self.has_run_out_for_good(call.ended) else "ready"
            self.let_go(at)
            self.state, self.attempts = state, self.attempts - 1
            self.note(call, at)

    def close(self):
        if self.doubtful_from:
            self.let_go(self.doubtful_from)
        return super().close()


def claim_of(call):
    return call.transaction, call.began


def replay(calls, messages):
    """All counted calls on the messages of one key, in their one order."""
    for at, _, call in sorted(calls, key=lambda entry: entry[:2]):
        message = messages[call.message]
        was, doubts = message.state, doubtful(messages)
        try:
            if call.function == "claim":
                check_order(call, message, messages)
            message.play(call, at)
        except AssertionError as violation:
            history = "\n".join(f"{messages[c.message].seq} {at.time()} {c}" for at, _, c in sorted(calls, key=lambda e: e[:2]))
            raise AssertionError(f"{violation}: {call.message}\n{message.seq} {call}\nhistory:\n{history}") from None
        message.note(call, at)
        if message.sends_back(call, was):
            for younger in messages.values():
                if younger.seq > message.seq and younger.lease != claim_of(call):
                    younger.go_back(call, min(at, doubts.get(younger, at)))
    for message, since in doubtful(messages).items():
        message.doubtful_from = since


def doubtful(messages):
    """The leases that may have gone back with a death that nobody knows of, and since when."""
    doubts, since = {}, None
    for message in sorted(messages.values(), key=lambda m: m.seq):
        if message.state == "leased" and since:
            doubts[message] = since
        if message.dead_block and message.is_last():
            since = min(message.until, since or message.until)
    return doubts


def check_order(call, message, messages):
    touched = {c.message for c in call.transaction.calls[: call.place] if c.counted and c.began is not call.began}
    for id, older in messages.items():
        if older.seq >= message.seq or id in touched or older.lease == claim_of(call):
            continue
        intervals = older.blocking + [(older.blocks_from, older.dies_at or FOR_EVER, older.lease)] * (older.blocks_from is not None)
        for since, till, _ in intervals:
            assert not (since < call.began and call.ended + EARLY < till), f"overtook {older.seq}, which was {older.state}"


def judge(db, world):
    times = commit_times(db, world.transactions)
    stored = {id: (seq, topic, key) for id, seq, topic, key in db.execute("SELECT id, seq, topic, key FROM outbox.envelope")}
    by_key = collections.defaultdict(list)
    others = []
    for transaction in world.transactions:
        for call in transaction.calls:
            if not call.counted:
                others.append(call)
            elif transaction.committed and not call.undone:
                seq, topic, key = stored[call.message]
                by_key[topic, key or call.message].append((times[transaction.xid], call.place, call))
    models = {}
    for (topic, _), calls in by_key.items():
        if topic in JUDGED:
            messages = {c.message: KeyedMessage(stored[c.message][0], topic == BLOCKING) for *_, c in calls}
            models.update(messages)
            replay(calls, messages)
    final = {id: (m.state, m.attempts, m.until, m.doubtful_from) for id, m in models.items()}
    for model in models.values():
        model.close()
    for call in others:
        model = models.get(call.message)
        if model is None:
            continue
        earlier = call.transaction.calls[: call.place]
        touched = any(c.counted and stored.get(c.message, (0,))[1:] == stored[call.message][1:] for c in earlier)
        judged = test_model.may_have_been_alive if call.function == "retry_dead" else test_model.may_have_been_stale
        assert judged(call, model, touched), f"wrongly refused: {call}"
    return final


def check_the_view(db, final):
    earliest = now()
    seen = {row[0]: row[1:] for row in db.execute("SELECT id, state, attempts FROM outbox.message WHERE topic = ANY (%s)", [list(JUDGED)])}
    latest = now()
    assert set(seen) == set(final)
    for message, (state, attempts, until, doubtful_from) in final.items():
        found = seen[message]
        if state == "leased" and doubtful_from and found in (("ready", attempts - 1), ("waiting", attempts - 1)):
            continue  # it has gone back
        if state == "unsure":
            assert found in (("ready", attempts), ("dead", attempts + 1)), message
            continue
        if state == "leased" and until <= (earliest if found[0] == "leased" else latest):
            state = "dead" if attempts >= LIMIT else "ready"
        if {state, found[0]} == {"ready", "waiting"}:  # due by now, or appended for later
            state = found[0]
        assert found == (state, attempts), message


def test_each_key_is_delivered_in_order(server, database, db, request, seed):
    world, chance = World(seed), random.Random(seed)
    seconds = request.config.getoption("--seconds")
    deadline = time.monotonic() + seconds
    value(db, "set_topic", BLOCKING, '{"block_on_dead": true}')
    operator = Operator(server.connect(database, autocommit=True), chance.random(), deadline)
    players = [
        KeyPlayer(world, server.connect(database, autocommit=True), chance.random(), deadline) for _ in range(PLAYERS)
    ]
    for player in [*players, operator]:
        player.join(timeout=seconds + 60)
        assert not player.is_alive(), "a call never ended"
    assert world.surprises == []
    assert operator.stuck == 0 and operator.seen_parked > 0
    final = judge(db, world)
    time.sleep(0.1)
    check_the_view(db, final)
    deliver_the_rest(db)
    check_storage(db)
    functions = collections.Counter((c.function, c.counted) for t in world.transactions for c in t.calls if t.committed)
    print(functions)
    assert all(functions[f, True] > 10 for f in ("complete", "fail", "release", "abandon", "retry_dead", "claim"))


HAMMER = """
    SELECT outbox.append('c', 't', '1', key => 'k' || (random() * 2)::int);
    SELECT coalesce(array_agg(token), '{}') AS ids FROM outbox.claim('w', 'c', 3) \\gset
    SELECT count(*) FROM outbox.complete_batch(':ids'::uuid[]);
"""


def test_nothing_is_left_behind_where_everybody_wants_the_same_keys(server, database, db, request):
    """Claims park behind messages that others complete at the same moment; as fast as it goes."""
    seconds = max(5, request.config.getoption("--seconds") // 3)
    command = [server.bin("pgbench"), "-n", "-c", "6", "-j", "2", "-T", str(seconds), "-f", "/dev/stdin", database]
    done = subprocess.run(command, input=HAMMER, capture_output=True, env=server.env, text=True)
    assert done.returncode == 0 and "number of failed transactions: 0" in done.stdout, done.stdout + done.stderr
    assert one(db, STUCK) == 0
    deliver_the_rest(db)
    check_storage(db)


def deliver_the_rest(db):
    """Each key to its end, in order; nothing is left behind."""
    for topic in CHANGING, BLOCKING:
        value(db, "set_topic", topic, '{"block_on_dead": null}')
    last = {}
    order = dict(db.execute("SELECT id, seq FROM outbox.envelope").fetchall())
    deadline = time.monotonic() + 30
    while set(states(db).values()) - {"delivered", "dead"}:
        assert time.monotonic() < deadline, db.execute("SELECT * FROM outbox.delivery WHERE place <> 'x'").fetchall()
        while leased := rows(db, "claim", "rest", batch_size=7):
            for message in leased:
                if message.key:
                    assert last.get((message.topic, message.key), -1) < order[message.id]
                    last[message.topic, message.key] = order[message.id]
            assert all(answer.completed for answer in rows(db, "complete_batch", [m.token for m in leased]))
        time.sleep(0.05)
    assert one(db, "SELECT count(*) FROM outbox.delivery WHERE place <> 'x'") == 0
