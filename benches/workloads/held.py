"""The same load while something keeps vacuum from removing finished rows, as a backup, a report or a forgotten
transaction does. Workers fail 5 % of the messages, and one lease stays open. One system after the other, over time.
"""

import pace

TITLE = "Held snapshot"
RATE = 4000
GROUP = 40  # messages per call: a hundred calls a second
FAILS = 0.05
HOLDS = {
    "snapshot": ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"],
    "idle writer": ["BEGIN", None],  # an append, and nothing more
}


def run(bench):
    for hold, runs in bench.form.held.items():
        for system in bench.chosen(lambda s: s.pipe_append and s.name in runs):
            one(bench, system, hold, runs[system.name])


def one(bench, system, hold, seconds):
    arena, name, width = bench.arena, system.name, bench.form.bucket
    bench.empty(system)
    example = ["{}"]
    with arena.connect(name) as other, arena.connect(name) as keeper:
        other.execute(system.pipe_append, [example])
        other.execute(system.pipe_hold)  # a worker that never answers
        for statement in HOLDS[hold]:
            keeper.execute(*(statement,) if statement else (system.pipe_append, [example]))
        start, claims, completions = pace.offer(arena, name, system, RATE, seconds, GROUP, FAILS)
        left = int(arena.sql(system.unfinished, name)) - 1
        keeper.execute("ROLLBACK")
    case = f"{hold} held"
    for number, bucket in enumerate(pace.buckets(start, seconds, width, claims, completions)):
        bench.samples.add("held", case, name, number, **bucket)
    bench.samples.add("held-left", case, name, 0, left=left, seconds=seconds, offered=RATE * seconds)
    bench.say(f"held: {system.title}, {case}, {left:,} left of {RATE * seconds:,}")
