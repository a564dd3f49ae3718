"""One message per transaction: what a business transaction pays."""

from payload import named

TITLE = "Append, one per transaction"


def cases(form):
    for sync in (True, False):
        for clients in form.clients[sync]:
            yield {"clients": clients, "sync": sync}
    yield {"clients": 4, "sync": False, "with_id": True}
    for size, numbers in form.large.items():
        for clients in numbers:
            yield {"clients": clients, "sync": False, "size": size}


def label(clients, sync, with_id=False, size=300):
    words = [f"{clients} client{'s' * (clients > 1)}", f"synchronous commit {'on' if sync else 'off'}"]
    words += ["caller's id"] * with_id + [named(size)] * (size > 300)
    return ", ".join(words)


def run(bench):
    for case in cases(bench.form):
        able = lambda s: (s.append_with_id if case.get("with_id") else s.append) and case.get("size", 0) <= s.largest  # noqa: E731, B023
        for round, system in bench.turns(able):
            if system.name == "pgmq-delete":
                continue  # appends as pgmq does
            with bench.attempt(system, label(**case)):
                bench.empty(system)
                done = system.run_append(bench.arena, system.name, seconds=bench.form.seconds, **case)
                bench.sample("append", label(**case), system, round, done, done.transactions)
