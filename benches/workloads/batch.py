"""A hundred messages in one call and one transaction, from one client."""

TITLE = "Append, 100 per call"


def run(bench):
    for sync in bench.form.batch_sync:
        case = f"synchronous commit {'on' if sync else 'off'}"
        for round, system in bench.turns(lambda s: s.append_many):
            if system.name == "pgmq-delete":
                continue  # appends as pgmq does
            with bench.attempt(system, case):
                bench.empty(system)
                done = system.run_append_many(bench.arena, system.name, 100, bench.form.seconds, sync)
                bench.sample("batch", case, system, round, done, done.transactions * 100)
