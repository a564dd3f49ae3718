"""Order by key while nothing that is over can be removed. 2,000 keys in random order; one client, synchronous commit off:
`append_batch` of 5,000, then claims of 500, each completed in one call, until nothing is left, again and again. A snapshot is
held all the while. In turn, nothing else happens; or one append stays open; or one message in a hundred fails, is due again
after a second, and sends the younger ones of its key that the same claim has back with it. No lease runs out. The figures are
CPU of the client's backend per message, and the rate.
"""

import json
import random
import time

import arena as place
import payload

TITLE = "Keyed drain beside a held snapshot"
KEYS = 2000
APPENDED, CLAIMED = 5000, 500
PATIENCE = 180  # seconds; then the part that is running is taken for the last
PARTS = 6  # the bar compares the last part with the first
BESIDE = {"nothing else": (False, 0.0), "an append that stays open": (True, 0.0), "1 % of messages failing": (False, 0.01)}
APPEND = f"SELECT count(*) FROM outbox.append_batch({payload.NAME}, %s)"
CLAIM = f"SELECT array_agg(token) FROM outbox.claim('worker', {payload.NAME}, {CLAIMED})"
COMPLETE = "SELECT count(*) FILTER (WHERE completed) FROM outbox.complete_batch(%s::uuid[])"
FAIL = "SELECT count(outbox.fail(t, 'no answer', clock_timestamp() + interval '1 second')) FROM unnest(%s::uuid[]) AS t"


def case(beside, prepared):
    return f"{beside}, max_prepared_transactions = {prepared}"


def run(bench):
    for system in bench.chosen(lambda s: s.name == "outbox"):
        for prepared in bench.form.drain_prepared:
            with place.start(max_prepared_transactions=prepared) as server:
                arena = place.Arena(server)
                for beside, (open_append, fails) in BESIDE.items():
                    with bench.attempt(system, case(beside, prepared)):
                        one(bench, arena, system, case(beside, prepared), open_append, fails)
                    arena.drop("drain")


def one(bench, arena, system, case, open_append, fails):
    system.create(arena, "drain")
    with arena.connect("drain") as snapshot, arena.connect("drain") as writer, arena.connect("drain", prepare_threshold=0) as client:
        snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        if open_append:
            writer.execute("BEGIN")
            system.append_one(writer)
        client.execute("SET synchronous_commit = off")
        parts = Parts(bench, place.Backends(client), case)
        chance = random.Random(4711)
        while parts.number < PARTS:
            client.execute(APPEND, [messages(chance)])
            while tokens := client.execute(CLAIM).fetchone()[0]:
                failed = tokens[: int(len(tokens) * fails)]
                if failed:
                    client.execute(FAIL, [failed])
                parts.count(client.execute(COMPLETE, [tokens[len(failed) :]]).fetchone()[0])


class Parts:
    def __init__(self, bench, backends, case):
        self.bench, self.backends, self.case = bench, backends, case
        self.size = bench.form.drained // PARTS
        self.number, self.until = 0, time.monotonic() + PATIENCE
        self.begin()

    def begin(self):
        self.done, self.cpu, self.since = 0, self.backends.cpu(), time.monotonic()

    def count(self, messages):
        self.done += messages
        late = time.monotonic() > self.until
        if self.number < PARTS and (late or self.done >= self.size):
            self.number = PARTS - 1 if late else self.number
            rate = self.done / (time.monotonic() - self.since)
            cpu = (self.backends.cpu() - self.cpu) / self.done * 1e6
            self.bench.samples.add("drain", f"{self.case}: part {self.number + 1} of {PARTS}", "outbox", 0, rate=rate, backend=cpu)
            self.bench.say(f"drain: {self.case}: part {self.number + 1}: {rate:,.0f}/s, {cpu:.1f} µs of the backend's CPU")
            self.number += 1
            self.begin()


def messages(chance):
    body = payload.one(100)
    return "[" + ",".join(message(body, chance.randrange(KEYS)) for _ in range(APPENDED)) + "]"


def message(body, key):
    return f'{{"type": {json.dumps(payload.TYPE)}, "key": "customer-{key}", "payload": {body}}}'
