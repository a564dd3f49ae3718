"""Claim and complete, in two transactions, until so many messages are delivered.

How many differs by system, so that each works for about the same time; the run before tells. Rows stay in the
server, aggregated to their ids: fetching a payload costs every system the same.
"""

TITLE = "Claim and complete"
TRIAL = 2000


def cases(form):
    for sync, batch, clients in form.deliver:
        yield f"by {batch}, {clients} client{'s' * (clients > 1)}, synchronous commit {'on' if sync else 'off'}", sync, batch, clients


def run(bench):
    for case, sync, batch, clients in cases(bench.form):
        able = bench.chosen(lambda s: s.claim(batch) and (s.parallel or clients == 1))
        step, counts = 100 * clients, {}

        def once(system, count):
            system.make_ready(bench.arena, system.name, count)
            done = system.run_deliver(bench.arena, system.name, batch, clients, count, sync)
            rate = done.transactions * batch / done.seconds
            counts[system.name] = max(step, min(bench.form.largest, int(rate * bench.form.seconds)) // step * step)
            return done

        for system in able:
            once(system, TRIAL)
        for round, system in bench.turns(lambda s: s in able):
            count = counts[system.name]
            done = once(system, count)
            left = int(bench.arena.sql(system.unfinished, system.name))
            bench.sample("deliver", case, system, round, done, count - left)
