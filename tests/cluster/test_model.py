"""Random calls from many sessions, judged afterwards by a model of one message: the contract's invariants 1 to 7.

Each player makes calls alone or several to a transaction, in any isolation level, with savepoints, half of them
rolled back. Every call is noted with its answer, its time and its transaction. Afterwards the commit times
(track_commit_timestamp) put the calls that counted into their one order, and the model replays it for each message:
what an answer says must be what the model would have said. A call that did not count (a stale token, a message that
was not dead) wrote nothing and has no place in that order; it must be true of some moment while it ran.

--seed repeats the choices (not the interleaving), --seconds makes the run longer.
"""

import collections
import random
import time
from datetime import datetime, timezone

from conftest import check_storage, rows, states
from players import CONF, EARLY, LIMIT, ONE_ANSWER, PLAYERS, Player, World, now


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
