"""Order by key beside transactions that stay open: whatever a transaction has done to messages of a key, and however it
ends, everything that can be claimed afterwards is got within three seconds by a session that waits.

Every deed is done in a transaction of its own that stays open for longer than anybody has patience with, once for every
end that a transaction can have. Meanwhile others claim, now and then, one message at a time. All at once: a topic each.
"""

import itertools
import threading
import time

from conftest import check_storage, one, rows, value

HELD = 3.6  # seconds: longer than claims have patience with
SOON = 3  # seconds until what can be claimed must be got
CONF = {
    "max_connections": 400,
    "max_prepared_transactions": 100,
    "shared_preload_libraries": "outbox",  # room for so many topics
    "outbox.purge_interval_seconds": 0,
}


class Scene:
    """A topic with messages a1 to a4 of one key, and one without a key."""

    def __init__(self, db, topic):
        self.db, self.topic = db, topic
        self.leased = []
        for name in "a1", "a2", "a3", "a4":
            self.append(db, name, "a")
        self.append(db, "free", None)

    def append(self, db, name, key):
        return value(db, "append", self.topic, "t", f'"{name}"', key=key)

    def claim(self, db, count=1, seconds=60):
        return rows(db, "claim", "w", self.topic, count, seconds)

    def answer(self, db, function, leased=None):
        for message in self.leased if leased is None else leased:
            named = {"retry_at": "2001-01-01"} if function == "fail" else {}
            rows(db, function, message.token, **named)

    def lease(self, count=1, seconds=60):
        self.leased = self.claim(self.db, count, seconds)

    def crash(self, count):
        self.lease(count, 1)
        time.sleep(1.1)

    def strict(self, on="true"):
        value(self.db, "set_topic", self.topic, '{"block_on_dead": %s}' % on)

    def die(self):
        self.lease()
        self.answer(self.db, "abandon")

    def ids(self, state):
        query = "SELECT id FROM outbox.message WHERE topic = %s AND state = %s"
        return [id for (id,) in self.db.execute(query, [self.topic, state])]


# A deed: what is before, in the transaction that is held, beside it, and after it.


def nothing(scene, db=None):
    pass


def in_one(*functions):
    """Leases a message and gives these answers, all in the held transaction."""

    def deed(scene, db):
        leased = scene.claim(db)
        for function in functions:
            scene.answer(db, function, leased)

    return nothing, deed, nothing


def answer(function, count=1, of=slice(None)):
    def deed(scene, db):
        scene.answer(db, function, scene.leased[of])

    return lambda scene: scene.lease(count), deed, nothing


def after_crash(count, *functions):
    def deed(scene, db):
        leased = scene.claim(db, 1, 1)
        for function in functions:
            scene.answer(db, function, leased)

    return lambda scene: scene.crash(count), deed, nothing


def strict_and_dead(scene):
    scene.strict()
    scene.die()
    scene.answer(scene.db, "complete", scene.claim(scene.db))  # the free one; the others are parked


def revive_and_complete(scene):
    for id in scene.ids("dead"):
        value(scene.db, "retry_dead", id)
    scene.answer(scene.db, "complete", scene.claim(scene.db))


def last_attempt(count):
    """Messages whose last allowed lease has run out."""

    def before(scene):
        value(scene.db, "set_topic", scene.topic, '{"max_attempts": 1}')
        scene.crash(count)

    return before


def retry(scene, db):
    for id in scene.ids("dead"):
        value(db, "retry_dead", id)


DEEDS = {
    "append": (nothing, lambda scene, db: scene.append(db, "a5", "a"), nothing),
    "claim": (nothing, lambda scene, db: scene.claim(db, 1, 1), nothing),
    "claim_two": (nothing, lambda scene, db: scene.claim(db, 2, 1), nothing),
    "claim_complete": in_one("complete"),
    "claim_extend_complete": in_one("extend", "complete"),
    "claim_fail": in_one("fail"),
    "claim_release": in_one("release"),
    "claim_abandon": in_one("abandon"),
    "claim_extend_abandon": in_one("extend", "abandon"),
    "complete": answer("complete"),
    "complete_both": answer("complete", 2),
    "complete_second": answer("complete", 2, slice(1, 2)),
    "fail": answer("fail", 2, slice(0, 1)),
    "release": answer("release", 2, slice(0, 1)),
    "extend": answer("extend"),
    "abandon": answer("abandon"),
    "crash": after_crash(3),
    "crash_complete": after_crash(3, "complete"),
    "crash_extend_complete": after_crash(3, "extend", "complete"),
    "crash_abandon": after_crash(3, "abandon"),
    "crash_fail": after_crash(3, "fail"),
    "late_complete": (lambda scene: scene.crash(2), lambda scene, db: scene.answer(db, "complete", scene.leased[1:]), nothing),
    "late_extend": (lambda scene: scene.crash(2), lambda scene, db: scene.answer(db, "extend", scene.leased[1:]), nothing),
    "last_complete": (last_attempt(2), lambda scene, db: scene.answer(db, "complete", scene.leased[:1]), nothing),
    "last_claimed": (last_attempt(1), lambda scene, db: scene.claim(db, 1, 1), nothing),
    "retry_dead": (Scene.die, retry, nothing),
    "redrive": (Scene.die, lambda scene, db: value(db, "redrive", scene.topic), nothing),
    "strict_retry_dead": (strict_and_dead, retry, nothing),
    "strict_redrive": (strict_and_dead, lambda scene, db: value(db, "redrive", scene.topic), nothing),
    "strict_abandon": (lambda s: (s.strict(), s.lease(2)), lambda scene, db: scene.answer(db, "abandon", scene.leased[:1]), nothing),
    "loosen": (strict_and_dead, lambda scene, db: value(db, "set_topic", scene.topic, '{"block_on_dead": null}'), nothing),
    "loosen_and_revive": (
        strict_and_dead,
        lambda scene, db: value(db, "set_topic", scene.topic, '{"block_on_dead": null}'),
        revive_and_complete,
    ),
    "tighten": (Scene.die, lambda scene, db: value(db, "set_topic", scene.topic, '{"block_on_dead": true}'), nothing),
    "purge": (nothing, lambda scene, db: value(db, "purge"), nothing),
}
ENDS = "commit", "rollback", "commit_prepared", "rollback_prepared", "savepoint"


class Held:
    """A deed in a transaction that stays open."""

    def __init__(self, server, database, db, deed, end):
        self.name, self.end = f"{deed} {end}", end
        before, self.deed, self.beside = DEEDS[deed]
        self.own = server.connect(database)
        self.db = server.connect(database, autocommit=True)
        self.scene = Scene(self.db, self.name)
        self.before = threading.Thread(target=before, args=[self.scene], daemon=True)
        self.before.start()

    def hold(self):
        self.before.join()
        if self.end == "savepoint":
            self.own.execute("SAVEPOINT s")
        self.deed(self.scene, self.own)
        if self.end.endswith("prepared"):
            self.own.execute(f"PREPARE TRANSACTION '{self.name}'")
        if self.end == "savepoint":
            self.own.execute("ROLLBACK TO s")

    def look(self):
        """What somebody does beside it, now and then."""
        if not self.name.startswith("loosen_and_revive"):
            for message in self.scene.claim(self.db):
                value(self.db, "complete", message.token)

    def over(self):
        match self.end:
            case "commit_prepared" | "rollback_prepared":
                self.own.rollback()
                self.own.autocommit = True
                self.own.execute(f"{self.end.replace('_', ' ').upper()} '{self.name}'")
            case "rollback":
                self.own.rollback()
            case _:
                self.own.commit()

    def settle(self):
        """From now on everything is to be delivered."""
        if self.name.startswith(("strict", "loosen ", "tighten", "last")):
            value(self.db, "set_topic", self.name, '{"block_on_dead": null, "max_attempts": null}')
        self.scene.answer(self.db, "release")
        self.ended = time.monotonic()

    def drain(self):
        """Whatever is left comes to a session that waits: in order, and soon."""
        self.problem = "it does not end"
        left = "SELECT count(*) FROM outbox.message WHERE topic = %s AND state IN ('ready', 'leased')"
        while one(self.db, left, self.name):
            began = time.monotonic()
            leased = rows(self.db, "claim", "late", self.name, wait_seconds=SOON + 2)
            took = time.monotonic() - max(began, self.ended)
            if not leased or took > SOON:
                self.problem = f"{len(leased)} after {took:.1f} s"
                return
            for message in leased:
                value(self.db, "complete", message.token)
        self.problem = None


def test_nothing_stays_behind(server, database, db):
    held = [Held(server, database, db, deed, end) for deed, end in itertools.product(DEEDS, ENDS)]
    for transaction in held:
        transaction.hold()
    until, beside = time.monotonic() + HELD, [threading.Thread(target=h.beside, args=[h.scene], daemon=True) for h in held]
    for thread in beside:
        thread.start()
    while time.monotonic() < until:
        for transaction in held:
            transaction.look()
        time.sleep(0.2)
    for thread in beside:
        thread.join(timeout=SOON)
    for transaction in held:
        transaction.over()
    for transaction in held:
        transaction.settle()
    drains = [threading.Thread(target=h.drain, daemon=True) for h in held]
    for thread in drains:
        thread.start()
    for thread in drains:
        thread.join(timeout=20)
    problems = {h.name: h.problem for h in held if h.problem}
    for transaction in held:
        transaction.own.close()
        transaction.db.close()
    assert not problems, "\n".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
    check_storage(db)
