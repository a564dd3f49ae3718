#!/usr/bin/env python3
"""This checkout beside an earlier one: both built as Cargo.toml says, a server for each, measured in one run.

    python3 benches/compare.py BEFORE               a checkout or a git revision; the short form, about five minutes
    python3 benches/compare.py BEFORE --long        more rounds
    python3 benches/compare.py BEFORE --only append --rounds 20

In each round both are measured with each item, one right after the other, in the odd rounds the later one first. A ratio is
after / before of one round, by rate and by the CPU time that the server spent per message, both so that more is better; of
latencies the rate is one over the median. "Best" is the ratio of the lowest CPU times of all rounds: other work on the machine
can only add to them. Autovacuum is off, so that what is compared is what the calls themselves cost.
"""

import argparse
import random
import sys
import threading
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "dev"))

import arena as place  # noqa: E402
import builds  # noqa: E402
import payload  # noqa: E402
import setup  # noqa: E402
from figures import percentile  # noqa: E402
from server import Server  # noqa: E402
from systems.outbox import Keyed, Outbox  # noqa: E402
from workloads import latency  # noqa: E402

CONF = {**place.CONF, "autovacuum": False, "track_commit_timestamp": True}
BAR = 0.97
DATABASE = "outbox"
SECONDS = 1  # of each measurement of an append
KEYS = 2000
SHORT, LONG = 7, 30  # rounds


class Side:
    """One of the two: its server."""

    def __init__(self, source):
        self.commit = builds.commit(source)
        self.server = Server(conf=CONF, pg_config=builds.server(source))

    def start(self):
        self.server.start()
        self.arena = place.Arena(self.server)
        Outbox().create(self.arena, DATABASE)
        self.arena.sql(f"ALTER DATABASE {DATABASE} SET synchronous_commit = off", DATABASE)  # pgbench says what it wants


# -- what is measured: (messages per second, CPU per message) ------------------------------------


def append(clients, sync):
    def measure(arena):
        Outbox().empty(arena, DATABASE)
        arena.settle()
        run = Outbox().run_append(arena, DATABASE, clients, SECONDS, sync)
        return run.transactions / run.seconds, run.cpu / run.transactions

    return measure


def append_batch(arena):
    Outbox().empty(arena, DATABASE)
    arena.settle()
    run = Outbox().run_append_many(arena, DATABASE, 100, SECONDS, False)
    return run.transactions * 100 / run.seconds, run.cpu / run.transactions / 100


def deliver(batch, count, system=None, clients=1):
    system = system or Outbox()

    def measure(arena):
        system.make_ready(arena, DATABASE, count)
        run = system.run_deliver(arena, DATABASE, batch, clients, count, False)
        left = int(arena.sql(system.unfinished, DATABASE))
        return (count - left) / run.seconds, run.cpu / (count - left)

    return measure


def commit_to_rows(rate, count):
    def measure(arena):
        Outbox().empty(arena, DATABASE)
        with place.Meter(arena) as meter:
            late = list(latency.commit_to_rows(arena, Outbox(), count, latency.PAUSES[rate]))
        return 1e6 / median(late), meter.cpu / count

    return measure


def hands(arena, count=60):
    """From the call of append to the message in the client's hands, at no regular distance."""
    Outbox().empty(arena, DATABASE)
    called, late = {}, []

    def work():
        claim = f"SELECT payload::text, token FROM outbox.claim('worker', {payload.NAME}, wait_seconds => 5)"
        while len(late) < count:
            rows = worker.execute(claim).fetchall()
            now = time.perf_counter()
            late.extend(now - called[number] for number, _ in rows)
            worker.execute("SELECT count(*) FROM outbox.complete_batch(%s::uuid[])", [[token for _, token in rows]])

    chance = random.Random(4711)
    with arena.connect(DATABASE, prepare_threshold=0) as worker, arena.connect(DATABASE, prepare_threshold=0) as producer:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        with place.Meter(arena) as meter:
            for number in range(count):
                time.sleep(chance.uniform(0.005, 0.025))
                called[str(number)] = time.perf_counter()
                producer.execute(f"SELECT outbox.append({payload.NAME}, '{payload.TYPE}', %s)", [str(number)])
            thread.join()
    return 1 / percentile(late, 0.5), meter.cpu / count


ITEMS = {
    "append, 1 client": append(1, False),
    "append, 4 clients": append(4, False),
    "append, 1 client, synchronous commit": append(1, True),
    "append, 4 clients, synchronous commit": append(4, True),
    "append_batch of 100": append_batch,
    "claim + complete by 100": deliver(100, 30_000),
    "claim + complete by 100, 4 clients": deliver(100, 40_000, clients=4),
    "claim + complete by 1": deliver(1, 4_000),
    f"keyed drain by 100, {KEYS:,} keys": deliver(100, 20_000, Keyed(KEYS)),
    "commit to rows, idle": commit_to_rows(latency.IDLE, 200),
    "commit to rows, 1,000 messages per second": commit_to_rows(latency.BUSY, 600),
    "append call to the client's hands": hands,
}


def measure(sides, rounds, items):
    """{item: [(before, after)]}, each (rate, CPU)."""
    results = {item: [] for item in items}
    began = time.monotonic()
    for round in range(rounds + 1):  # the first warms up
        for item in items:
            order = sides[::-1] if round % 2 else sides
            figures = {side: ITEMS[item](side.arena) for side in order}
            if round:
                results[item].append([figures[side] for side in sides])
        print(f"{time.monotonic() - began:6.0f} s  round {round} of {rounds}{'' if round else ', which warms up'}", flush=True)
    return results


def table(sides, results):
    yield f"before {sides[0].commit}, after {sides[1].commit}"
    columns = "", "before/s", "after/s", "ratio", "rounds", "CPU us before", "after", "ratio", "rounds", "best", f"bar {BAR}"
    yield "{:44}{:>11}{:>11}{:>7}{:>14}{:>15}{:>9}{:>7}{:>14}{:>7}  {}".format(*columns)
    for item, pairs in results.items():
        rates, cpus = [[(before[i], after[i]) for before, after in pairs] for i in (0, 1)]
        by_rate, by_cpu = [after / before for before, after in rates], [before / after for before, after in cpus if after]
        best = min(before for before, _ in cpus) / max(1e-9, min(after for _, after in cpus))
        met = [name for name, ratios in (("rate", by_rate), ("CPU", by_cpu), ("best", [best])) if ratios and median(ratios) >= BAR]
        yield "{:44}{:>11,.0f}{:>11,.0f}{:>7.3f}{:>14}{:>15.1f}{:>9.1f}{:>7.3f}{:>14}{:>7.3f}  {}".format(
            item, *(median(pair[i] for pair in rates) for i in (0, 1)), median(by_rate), spread(by_rate),
            *(median(pair[i] for pair in cpus) * 1e6 for i in (0, 1)), median(by_cpu or [0]), spread(by_cpu or [0]), best,
            "met" if len(met) == 3 else f"by {' and '.join(met)}" if met else "NOT MET",
        )  # fmt: skip


def spread(ratios):
    return f"{min(ratios):.2f}-{max(ratios):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a checkout or a git revision")
    parser.add_argument("--after", default=str(setup.CHECKOUT), help="the same; else this checkout")
    parser.add_argument("--long", action="store_true", help=f"{LONG} rounds instead of {SHORT}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", default="", help="items whose name has this in it")
    arguments = parser.parse_args()
    items = [item for item in ITEMS if arguments.only in item]
    sides = [Side(builds.checkout(name)) for name in (arguments.before, arguments.after)]
    with sides[0].server, sides[1].server:
        for side in sides:
            side.start()
        results = measure(sides, arguments.rounds or (LONG if arguments.long else SHORT), items)
    print("\n".join(["", *table(sides, results)]))


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
