"""Transactions that stay open, prepared ones, savepoints and table tools around every call; `make torture` runs it for ten minutes.

Three kinds of sessions. Those that hold: a few calls to a transaction, in any isolation level, with up to five seconds
between them and before the end, which is a commit, a rollback, or PREPARE TRANSACTION and either of them later. Workers:
single calls, claims that sleep in the server; they complete most of what they get and leave the rest to the others or to
its lease. One that appends steadily, and one that claims and completes hundreds in one transaction. Besides, vacuum,
REINDEX CONCURRENTLY and pg_repack. In the end, single calls as fast as they go, which must not deadlock.

What is judged: every answer, afterwards, by the model of test_keys_model.py; that no error comes out but those of a lost race;
and meanwhile, by looking from outside (observer.py): what can be claimed is claimed within three seconds by a claim that asks
for it, though others hold what they hold; a claim that sleeps holds no row and delays nobody, and comes back early only with rows.
"""

import collections
import random
import time
from datetime import timedelta

import conftest
import pytest
import setup
import test_keys_model
import test_model
from conftest import check_storage, value
from observer import Observer, stories
from server import Server
from sessions import HOLDERS, TOPICS, Caller, Hammer, Hoarder, Holder, Notary, Producer, Tables, Worker, World
from players import LIMIT
from test_model import commit_times

CONF = {
    "track_commit_timestamp": True,
    "max_prepared_transactions": 60,
    "max_connections": 60,
    "outbox.max_attempts": LIMIT,
    "outbox.backoff_seconds": 1,
    "outbox.purge_interval_seconds": 0,
    "deadlock_timeout": "200ms",
}
BLOCKING = test_keys_model.BLOCKING
CRASH = "was terminated by signal"
AT_ONCE = timedelta(milliseconds=30)  # from a look to the time stamp of what it leased
PATIENCE = 8  # seconds; then what is left in the end is left for ever
STORY = 6000  # characters of it
ASKS = [None, None, *TOPICS]  # what each worker claims


class Unsure(Exception):
    """Two calls at the same moment, of which either may have been first."""


class HeldMessage(test_keys_model.KeyedMessage):
    """Calls long before their commits: what goes back with an older message are the leases that there were when that was asked for."""

    def note(self, call, at):
        super().note(call, at)
        if call.function == "claim":
            self.taken = call.taken

    def go_back(self, call, at):
        if self.state == "leased":
            asked = call.taken - AT_ONCE if call.taken else call.began
            claimer, _ = self.lease
            there = claimer is call.transaction or claimer.over <= asked
            if not there and self.taken > call.ended:
                return
            if not there:
                raise Unsure
        super().go_back(call, at)


def judge(db, world):
    """As test_keys_model does, but on to the end: what is wrong with each key is said."""
    times = commit_times(db, world.transactions)
    stored = {id: (seq, topic, key) for id, seq, topic, key in db.execute("SELECT id, seq, topic, key FROM outbox.envelope")}
    by_key, others, final = collections.defaultdict(list), [], {}
    for transaction in world.transactions:
        for call in transaction.calls:
            if not call.counted:
                others.append(call)
            elif transaction.committed and not call.undone:
                if call.message not in stored:
                    world.went_wrong("lost", call)
                    continue
                _, topic, key = stored[call.message]
                by_key[topic, key or call.message].append((times[transaction.xid], call.place, call))
    models = {}
    for (topic, key), calls in by_key.items():
        if topic not in test_keys_model.JUDGED:
            continue
        messages = {c.message: HeldMessage(stored[c.message][0], topic == BLOCKING) for *_, c in calls}
        try:
            test_keys_model.replay(calls, messages)
        except Unsure:
            world.races["keys not judged"] += 1
            continue
        except AssertionError as violation:
            world.went_wrong("not what the model says", f"topic {topic}, key {key}: {str(violation)[-STORY:]}")
            continue
        models.update(messages)
        world.races["keys judged"] += 1
    final = {id: (m.state, m.attempts, m.until, m.doubtful_from) for id, m in models.items()}
    for model in models.values():
        model.close()
    for call in others:
        if call.message in models:
            earlier = call.transaction.calls[: call.place]
            touched = any(c.counted and stored.get(c.message, (0,))[1:] == stored[call.message][1:] for c in earlier)
            judged = test_model.may_have_been_alive if call.function == "retry_dead" else test_model.may_have_been_stale
            if not judged(call, models[call.message], touched):
                world.went_wrong("wrongly refused", call)
    return final


def deliver_the_rest(world, db):
    """Nothing is open, nothing is paused, nothing dead stands before anything: all of it can be delivered."""
    for topic in [*TOPICS, Hammer.TOPIC]:
        value(db, "set_topic", topic, '{"block_on_dead": null, "max_attempts": null}')
        value(db, "resume", topic)
    until = time.monotonic() + PATIENCE
    left = "SELECT seq, topic, key, place::text, attempts FROM outbox.delivery WHERE place <> 'x'"
    while (rest := db.execute(left).fetchall()) and time.monotonic() < until:
        while tokens := [row.token for row in conftest.rows(db, "claim", "rest", batch_size=500)]:
            until = time.monotonic() + PATIENCE
            assert all(answer.completed for answer in conftest.rows(db, "complete_batch", tokens))
        time.sleep(0.05)
    for row in rest:
        world.went_wrong("nobody gets it", "\n".join([str(row), *stories(db, world, *row[:3])]))


@pytest.mark.parametrize("preload", ["outbox", ""], ids=["preloaded", "plain"])
def test_whatever_stays_open_nothing_is_lost_repeated_or_stuck(request, seed, preload):
    seconds, chance = request.config.getoption("--seconds") / 2, random.Random(seed)
    tools = [tool for tool in request.config.getoption("--tools").split(",") if tool]
    with Server(conf={**CONF, "shared_preload_libraries": preload}) as server:
        server.createdb("torture", extension="outbox")
        world = World(seed, server, "torture")
        with world.connect("judge") as db:
            db.execute("CREATE EXTENSION pgrowlocks")
            value(db, "set_topic", BLOCKING, '{"block_on_dead": true}')
            if "repack" in tools and server.pg != "15":
                tools.remove("repack")  # Debian has it for this one
            if "repack" in tools:
                world.pg_repack = setup.pg_repack(server.environment["PG_CONFIG"])
                db.execute("CREATE EXTENSION pg_repack")
            run(world, chance, seconds, tools)
            assert CRASH not in server.log(), "\n".join(server.log().splitlines()[-60:])
            judge(db, world)
            hammer(world, db, chance, seconds / 5)
            deliver_the_rest(world, db)
            try:
                for (sql,) in db.execute(Tables.LEFT_OVER).fetchall():
                    db.execute(sql)
                check_storage(db)
            except AssertionError as violation:
                world.went_wrong("in the end", violation)
        print(f"{sum(t.committed for t in world.transactions)} transactions, {len(world.ids)} messages, {dict(world.races)}")
    assert world.wrong == {}


def hammer(world, db, chance, seconds):
    world.end.clear()
    world.tokens.clear()
    value(db, "set_topic", Hammer.TOPIC, '{"block_on_dead": true}')
    sessions = [Hammer(world, f"hammer-{number}", chance.random()) for number in range(6)]
    time.sleep(seconds)
    world.end.set()
    for session in sessions:
        session.join(timeout=30)


def run(world, chance, seconds, tools):
    workers = [Worker(world, number, topic, chance.random()) for number, topic in enumerate(ASKS)]
    workers.append(Caller(world, len(workers), None, chance.random()))
    observer = Observer(world, workers)
    sessions = [Holder(world, f"holder-{number}", chance.random()) for number in range(HOLDERS)]
    sessions.append(Hoarder(world, "hoarder", None, chance.random()))
    sessions += [Producer(world, "producer", chance.random())]
    sessions += [Tables(world, name, chance.random()) for name in tools]
    notary = Notary(world, "notary", chance.random())
    time.sleep(seconds)
    world.end.set()
    for session in sessions:
        session.join(timeout=30)
        if session.is_alive():
            world.went_wrong("does not end", session.name)
    time.sleep(5)  # nothing is open: the workers take what there is
    world.rest.set()
    for session in [*workers, notary, observer]:
        session.join(timeout=30)
        if session.is_alive():
            world.went_wrong("does not end", session.name)
