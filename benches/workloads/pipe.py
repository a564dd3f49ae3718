"""The whole pipe at a fixed offered rate: append one by one, claim, complete; latency from the scheduled time."""

import pace
from figures import percentile

TITLE = "The whole pipe"


def run(bench):
    form = bench.form
    for round, system in bench.turns(lambda s: s.pipe_append and s.name in form.pipe_systems):
        bench.empty(system)
        with bench.meter() as meter:
            _, _, completions = pace.offer(bench.arena, system.name, system, form.pipe_rate, form.pipe_seconds, 1)
        late = [ms for _, ms in completions]
        bench.samples.add(
            "pipe", f"{form.pipe_rate:,} messages per second offered", system.name, round,
            latency_p50=percentile(late, 0.5), latency_p99=percentile(late, 0.99),
            wal=meter.wal / len(late), cpu=meter.cpu / len(late) * 1e6,
        )
