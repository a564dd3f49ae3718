"""Claim and complete, in two transactions, until so many messages are delivered.

How many differs by system, so that each works for about the same time; the run before tells. Rows stay in the
server, aggregated to their ids: fetching a payload costs every system the same.
"""

from payload import named

TITLE = "Claim and complete"


def label(sync, batch, clients, size):
    words = [f"by {batch}", f"{clients} client{'s' * (clients > 1)}", f"synchronous commit {'on' if sync else 'off'}"]
    return ", ".join(words + [named(size)] * (size > 300))


def run(bench):
    for case in bench.form.deliver:
        one(bench, label(*case), *case)


def one(bench, case, sync, batch, clients, size):
    able = bench.chosen(lambda s: s.claim(batch) and (s.parallel or clients == 1) and size <= s.largest)
    step, counts = max(20, batch) * clients, {}

    def once(system, count):
        system.make_ready(bench.arena, system.name, count, size)
        done = system.run_deliver(bench.arena, system.name, batch, clients, count, sync)
        rate = done.transactions * batch / done.seconds
        wanted = min(bench.form.largest[size], int(rate * bench.form.seconds))
        counts[system.name] = max(step, wanted // step * step)
        return done

    for system in able:
        with bench.attempt(system, case):
            once(system, 40 if size >= 1_000_000 else max(400, 20 * batch))
    for round, system in bench.turns(lambda s: s.name in counts and s in able):
        with bench.attempt(system, case):
            count = counts[system.name]
            done = once(system, count)
            left = int(bench.arena.sql(system.unfinished, system.name))
            bench.sample("deliver", case, system, round, done, count - left)
