"""What order by key costs: outbox with a key on every message beside itself without. A thousand keys, in turn or at random.
What many messages of one key cost the others is in "Growth".
"""

from systems.outbox import Keyed

TITLE = "Order by key"
WITH, WITHOUT = "1,000 keys", "no keys"
APPEND, BATCH, DELIVER = "append, 4 clients", "append_batch of 100", "claim 100 + complete 100"
BOUNDS = {APPEND: 0.85, DELIVER: 0.7}


def run(bench):
    for system in bench.chosen(lambda s: s.name == "outbox"):
        for round in range(bench.form.rounds):
            # what is made in both ways is made of the same statements: the key is all that differs
            for way, keyed in ((WITHOUT, Keyed(0)), (WITH, Keyed(1000))):
                with bench.attempt(system, way):
                    one(bench, system, keyed, way, round)


def one(bench, system, keyed, way, round):
    arena, form, count = bench.arena, bench.form, bench.form.largest[300]
    bench.empty(system)
    done = keyed.run_append(arena, system.name, clients=4, seconds=form.seconds, sync=False)
    bench.sample("keys", f"{APPEND}, {way}", system, round, done, done.transactions)
    bench.empty(system)
    done = keyed.run_append_many(arena, system.name, 100, seconds=form.seconds, sync=False)
    bench.sample("keys", f"{BATCH}, {way}", system, round, done, done.transactions * 100)
    keyed.make_ready(arena, system.name, count)
    done = keyed.run_deliver(arena, system.name, 100, 1, count, sync=False)
    bench.sample("keys", f"{DELIVER}, {way}", system, round, done, count)
