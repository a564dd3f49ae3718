"""What it costs to watch: outbox.stats and outbox.status, read again and again by a connected client, over a backlog in
100 topics, a hundred messages of each leased.
"""

import time

import payload
from figures import percentile

TITLE = "Watching"
TOPICS = 100
READS = 30
VIEWS = "outbox.stats", "outbox.status"


def run(bench):
    for system in bench.chosen(lambda s: s.name == "outbox"):
        with bench.attempt(system):
            watch(bench, system, bench.form.watched)


def watch(bench, system, count):
    arena = bench.arena
    bench.empty(system)
    arena.sql(system.fill(count, topics=TOPICS), system.name)
    lease = f"SELECT count(*) FROM generate_series(0, {TOPICS - 1}) AS i, outbox.claim('worker', {payload.NAME} || i, 100, 43200)"
    arena.sql(lease, system.name)
    arena.sql("VACUUM ANALYZE", system.name)
    arena.settle()
    with arena.connect(system.name) as client:
        for round in range(bench.form.rounds):
            for view in VIEWS:
                took = [read(client, view) for _ in range(READS)]
                case = f"{view}, {count:,} messages in {TOPICS} topics"
                bench.samples.add("views", case, system.name, round, read_p50=percentile(took, 0.5), read_max=max(took))
                bench.say(f"views: {case}: {percentile(took, 0.5):.1f} ms, {max(took):.1f} ms")


def read(client, view):
    began = time.perf_counter()
    client.execute(f"SELECT * FROM {view}").fetchall()
    return (time.perf_counter() - began) * 1000
