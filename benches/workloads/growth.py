"""What a claim costs when a table has grown, over what it costs when it has not.

Two databases of each system, one with nothing but what is about to be claimed, one with many rows in one state besides
that vacuum and analyze have seen. Claims of 100 go to both in turn.
"""

from claims import Claims
from figures import percentile

TITLE = "Growth"
CLAIMS = 20  # per round
WARM = 10


def run(bench):
    for system in bench.chosen(lambda s: s.name in bench.form.growth):
        for state, counts in bench.form.growth[system.name].items():
            for count in counts:
                names = {"empty": f"{system.name}-empty", state: f"{system.name}-{state}"}
                with bench.attempt(system, f"{count:,} {state}"):
                    compare(bench, system, state, count, names)
                for name in names.values():
                    bench.arena.drop(name)


def compare(bench, system, state, count, names):
    arena, rounds = bench.arena, bench.form.rounds + 2
    for case, name in names.items():
        system.create(arena, name)
        if case == state:
            for statement in system.state(state, count):
                arena.sql(statement, name)
        arena.sql(system.fill((CLAIMS * rounds + WARM) * 100), name)
        arena.sql("VACUUM ANALYZE", name)
    arena.settle()
    clients = {case: Claims(arena, name, system) for case, name in names.items()}
    for _ in range(WARM):
        for claims in clients.values():
            claims.once()
    for round in range(rounds):
        took = {case: [] for case in clients}
        for _ in range(CLAIMS):
            for case, claims in clients.items():
                took[case].append(claims.once())
        grown, empty = percentile(took[state], 0.5), percentile(took["empty"], 0.5)
        bench.samples.add(
            "growth", f"{count:,} {state}", system.name, round,
            claim_p50=grown, claim_p99=percentile(took[state], 0.99), empty_p50=empty, growth=grown / empty,
        )  # fmt: skip
    for claims in clients.values():
        claims.close()
    bench.say(f"growth: {system.title}: {count:,} {state}: {grown:.2f} ms, empty {empty:.2f} ms")
