"""The same load while something keeps vacuum from removing finished rows, as a backup, a report or a forgotten
transaction does. Workers fail 5 % of the messages, and one lease stays open. One system after the other, over time.
"""

import pace

TITLE = "Held snapshot"
RATE = 4000
GROUP = 40  # messages per call: a hundred calls a second
FAILS = 0.05
PATIENCE = 60  # seconds of load behind schedule: then a peer has collapsed, and its run ends
HOLDS = {
    "snapshot": ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"],
    "idle writer": ["BEGIN"],  # an append, and nothing more
}


def run(bench):
    for hold, runs in bench.form.held.items():
        for system in bench.chosen(lambda s: s.pipe_append and s.name in runs):
            with bench.attempt(system, f"{hold} held"):
                one(bench, system, hold, runs[system.name])
            bench.save()


def one(bench, system, hold, seconds):
    arena, name = bench.arena, system.name
    patience = None if name == "outbox" else PATIENCE
    load = pace.Load(RATE, seconds, GROUP, FAILS, patience, bench.form.bucket)
    bench.empty(system)
    with arena.connect(name) as other, arena.connect(name) as keeper:
        system.append_one(other)
        if system.pipe_hold:
            other.execute(system.pipe_hold)  # a worker that never answers
        for statement in HOLDS[hold]:
            keeper.execute(statement)
        if hold == "idle writer":
            system.append_one(keeper)
        claims, late = pace.offer(arena, name, system, load)
        keeper.execute("ROLLBACK")
    case = f"{hold} held"
    for number, stretch in enumerate(pace.stretches(load, claims, late)):
        bench.samples.add("held", case, name, number, **stretch)
    left = load.offered - load.done.value
    bench.samples.add("held-left", case, name, 0, left=left, seconds=load.lasted, wanted=seconds, offered=load.offered)
    bench.say(f"held: {system.title}, {case}: {load.lasted:.0f} s, {left:,} left of {load.offered:,}")
