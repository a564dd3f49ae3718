"""What a message costs the server over its life, appended by 100 and delivered by 100: WAL, CPU, rows and disk left."""

TITLE = "Cost of a message's life"


def run(bench):
    count = bench.form.messages
    for round, system in bench.turns(lambda s: s.append_many):
        if round >= bench.form.cost_rounds:
            return
        name = system.name
        bench.empty(system)
        run = system.run_append_many(bench.arena, name, 100, bench.form.seconds, False)
        appended = run.transactions * 100
        bench.samples.add("cost", "append", name, round, wal=run.wal / appended, cpu=run.cpu / appended * 1e6)
        total = {"wal": run.wal / appended, "cpu": run.cpu / appended * 1e6}
        if system.claim(100):
            system.make_ready(bench.arena, name, count)
            run = system.run_deliver(bench.arena, name, 100, 1, count, False)
            delivered = {"wal": run.wal / count, "cpu": run.cpu / count * 1e6}
            bench.samples.add("cost", "claim + complete", name, round, **delivered)
            total = {key: total[key] + delivered[key] for key in total}
            total.update(left_over(bench.arena, system, count))
        bench.samples.add("cost", "append + claim + complete", name, round, **total)


def left_over(arena, system, count):
    dead, size = arena.sql(
        f"SELECT sum(n_dead_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE {system.tables}",
        system.name,
    ).split("|")
    return {"dead": int(dead) / count, "size": int(size) / count}
