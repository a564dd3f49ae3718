"""What a message costs the server over its life, appended by 100 and delivered by 100: WAL, CPU, rows and disk left."""

from payload import named

TITLE = "Cost of a message's life"
LIFE = "append + claim + complete"


def run(bench):
    for size, count in bench.form.cost.items():
        suffix = f", {named(size)}" if size > 300 else ""
        for round, system in bench.turns(lambda s: s.append_many, bench.form.cost_rounds):
            with bench.attempt(system, named(size)):
                for case, spent in lives(bench, system, count, size):
                    bench.samples.add("cost", case + suffix, system.name, round, **spent)
                bench.say(f"cost: {named(size)}: {system.title}: {spent['wal']:,.0f} B of WAL, {spent['cpu']:.1f} µs of CPU")


def lives(bench, system, count, size):
    arena, name = bench.arena, system.name
    bench.empty(system)
    run = system.run_append_many(arena, name, 100, bench.form.seconds, False, size)
    total = per_message(run, run.transactions * 100)
    yield "append", total
    if system.claim(100):
        system.make_ready(arena, name, count, size)
        delivered = per_message(system.run_deliver(arena, name, 100, 1, count, False), count)
        yield "claim + complete", delivered
        total = {key: total[key] + delivered[key] for key in total} | left_over(arena, system, count)
    yield LIFE, total


def per_message(run, count):
    return {"wal": run.wal / count, "cpu": run.cpu / count * 1e6}


def left_over(arena, system, count):
    dead, size = arena.sql(
        f"SELECT sum(n_dead_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE {system.tables}",
        system.name,
    ).split("|")
    return {"dead": int(dead) / count, "size": int(size) / count}
