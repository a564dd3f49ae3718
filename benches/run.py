#!/usr/bin/env python3
"""Measure outbox beside its peers, on one server, in one run.

    python3 benches/run.py                          the short form: every system, small durations, under 5 minutes
    python3 benches/run.py --full                   everything, about two hours; writes benches/report/
    python3 benches/run.py append deliver           only these workloads
    python3 benches/run.py held --systems outbox,pgmq --seconds 60 --hold snapshot
    python3 benches/run.py --full append deliver --output benches/report    a part anew, into a report that is there

Workloads: append batch deliver cost keys topics growth pipe latency views held trigger drain expiry, and, only when named, soak. Systems: outbox plain handwritten pgmq pgmq-delete pgq
graphile-worker pg-boss. `--seconds` is the length of one measurement, in `held` of the whole run; `--rounds` how
often each is repeated; `--hold` is one of those of `held`; `--output` a folder for the report, else one in the build area. Workloads measured before stay
in the report until they are measured anew. What is needed comes from the package registries.
"""

import argparse
import contextlib
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "dev"))

import arena as place  # noqa: E402
import build  # noqa: E402
import machine  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import setup  # noqa: E402
from figures import Samples  # noqa: E402
from forms import FULL, SHORT  # noqa: E402
from results import Results  # noqa: E402
from systems import ALL  # noqa: E402
from workloads import (  # noqa: E402
    append, batch, cost, deliver, drain, expiry, growth, held, keys, latency, pipe, soak, topics, trigger, views,
)  # fmt: skip

WORKLOADS = {
    "append": append, "batch": batch, "deliver": deliver, "cost": cost,
    "keys": keys, "topics": topics, "growth": growth, "pipe": pipe, "latency": latency, "views": views, "held": held,
    "trigger": trigger, "drain": drain, "expiry": expiry, "soak": soak,
}  # fmt: skip
BY_NAME = {"soak"}  # takes an hour: only when it is asked for


class Bench:
    """What a workload is given: the arena, the systems that could be prepared, the form, and where samples go."""

    def __init__(self, arena, systems, form):
        self.arena = arena
        self.systems = systems
        self.form = form
        self.samples = Samples()
        self.failed = []  # of this workload: what, and why
        self.save = lambda: None
        self.began = time.monotonic()

    def chosen(self, able):
        return [system for system in self.systems if able(system)]

    def turns(self, able, rounds=None):
        """A B C A B C …: each round every system that can, one after the other. Those of `form.once` only once."""
        for round in range(rounds or self.form.rounds):
            for system in self.chosen(able):
                if round == 0 or system.name not in self.form.once:
                    yield round, system

    @contextlib.contextmanager
    def attempt(self, system, case=""):
        """What fails in here is reported, and the others go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{', '.join(filter(None, [system.title, case]))}: {str(error).splitlines()[0]}")
            self.say(f"failed: {self.failed[-1]}")

    def empty(self, system):
        system.empty(self.arena, system.name)
        self.arena.settle()

    def meter(self):
        return place.Meter(self.arena)

    def sample(self, workload, case, system, round, run, messages):
        self.samples.add(
            workload, case, system.name, round,
            rate=messages / run.seconds, wal=run.wal / messages, cpu=run.cpu / messages * 1e6,
        )  # fmt: skip
        self.say(f"{workload}: {case}: {system.title}: {messages / run.seconds:,.0f}/s")

    def say(self, text):
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)


def prepared(names, installed):
    """The systems that can be had, and the reasons why others cannot. Sets each one's `version`."""
    if not installed:
        build.install()
    environment = setup.prepare()
    ready, missing = [], {}
    for system in ALL:
        if names and system.name not in names:
            continue
        try:
            system.version = system.prepare(environment)
            ready.append(system)
        except peers.Unavailable as reason:
            missing[system.title] = str(reason)
            print(f"without {system.title}: {reason}", flush=True)
    return ready, missing


def measure(names, systems, form, results):
    """Runs the workloads; one that fails is reported and the others go on. What there is is saved after each."""
    failures = []
    with place.start() as server:
        bench = Bench(place.Arena(server), systems, form)
        facts = machine.facts(bench.arena)
        for system in systems:
            system.create(bench.arena, system.name)
        for name in names:
            began, load = time.time(), os.getloadavg()[0]
            bench.failed = []

            def save(name=name, began=began, load=load):
                minutes = round((time.time() - began) / 60, 1)
                part = {"began": began, "minutes": minutes, "load before": round(load, 2), "failed": bench.failed}
                results.save(name, {**facts, **part}, bench.samples)

            bench.save = save
            try:
                WORKLOADS[name].run(bench)
            except Exception as error:  # the others still have something to say
                traceback.print_exc()
                bench.failed.append(f"{type(error).__name__}: {error}")
            save()
            failures += bench.failed
    return failures


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--full", action="store_true", help="everything, about two hours")
    parser.add_argument("--systems", default="", help=",".join(system.name for system in ALL))
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--hold", choices=held.HOLDS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--installed", action="store_true", help="outbox as it is installed, not built anew")
    arguments = parser.parse_args()
    names = [name for name in arguments.systems.split(",") if name]
    for what, given, known in (
        ("workload", arguments.workloads, WORKLOADS),
        ("system", names, [system.name for system in ALL]),
    ):
        for name in set(given) - set(known):
            raise setup.Missing(f"no {what} {name}; there are: {', '.join(known)}")
    form = FULL if arguments.full else SHORT
    if arguments.rounds:
        form = replace(form, rounds=arguments.rounds)
    if arguments.hold:
        form = replace(form, held={arguments.hold: form.held[arguments.hold]})
    if arguments.seconds:
        form = form.lasting(arguments.seconds)
    everything = arguments.full and not arguments.workloads and not names
    output = arguments.output or (HERE / "report" if everything else setup.area() / "bench" / "report")
    return arguments.workloads or [name for name in WORKLOADS if name not in BY_NAME], names, form, output, arguments.installed


def main():
    names, chosen, form, output, installed = parse()
    systems, missing = prepared(chosen, installed)
    command = " ".join(["python3 benches/run.py", *sys.argv[1:]])
    results = Results(output, command, systems, missing)
    failures = measure(names, systems, form, results)
    print(f"\n{report.bars_as_text(results.samples)}\n\n{output / 'README.md'}")
    for failure in failures:
        print(f"failed: {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
