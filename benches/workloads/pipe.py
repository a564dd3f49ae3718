"""The whole pipe at a fixed offered rate: append one by one, claim, complete; latency from the scheduled time."""

import pace
from figures import percentile

TITLE = "The whole pipe"


def run(bench):
    form = bench.form
    case = f"{form.pipe_rate:,} messages per second offered"
    for round, system in bench.turns(lambda s: s.pipe_append, form.pipe_rounds):
        with bench.attempt(system):
            bench.empty(system)
            load = pace.Load(form.pipe_rate, form.pipe_seconds, 1)
            with bench.meter() as meter:
                _, late = pace.offer(bench.arena, system.name, system, load)
            late = [ms for values in late.values() for ms in values]
            bench.samples.add(
                "pipe", case, system.name, round, rate=len(late) / form.pipe_seconds,
                latency_p50=percentile(late, 0.5), latency_p99=percentile(late, 0.99),
                wal=meter.wal / len(late), cpu=meter.cpu / len(late) * 1e6,
            )  # fmt: skip
            bench.say(f"pipe: {system.title}: {percentile(late, 0.5):.1f} ms, {len(late):,} of {load.offered:,}")
