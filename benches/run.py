#!/usr/bin/env python3
"""Measure outbox beside its peers, on one server, in one run.

    python3 benches/run.py                          the short form: every system, small durations, under 5 minutes
    python3 benches/run.py --full                   everything, about two hours, or what is still missing of it
    python3 benches/run.py --full append deliver    these parts of it, again
    python3 benches/run.py append deliver           only these workloads, in the short form
    python3 benches/run.py held --systems outbox,pgmq --seconds 60 --hold snapshot

`--full` goes part by part, and says before each how long the rest takes. Stopped, it goes on where it was, as long as the commit is
the same; with another commit it begins again. Once every part has been measured on this commit, it becomes benches/report/.

Workloads: append batch deliver cost keys topics growth pipe latency views held trigger drain expiry, and, only when named, soak. Systems: outbox plain handwritten pgmq pgmq-delete pgq
graphile-worker pg-boss. `--seconds` is the length of one measurement, in `held` of the whole run; `--rounds` how
often each is repeated; `--hold` is one of those of `held`; `--output` a folder for the report, else one in the build area. Parts
measured before stay in the report until they are measured again. What is needed comes from the package registries.
"""

import argparse
import contextlib
import os
import shutil
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
from results import Results, read  # noqa: E402
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
REPORT = HERE / "report"
GUESS = {"trigger": 4, "drain": 12, "expiry": 10, "soak": 61}  # minutes of parts that the report does not have yet


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


def parts(names, form):
    """(part, workload, form): a workload each, of `held` a hold each."""
    for name in names:
        if name == "held":
            yield from ((f"held {hold}", name, replace(form, held={hold: form.held[hold]})) for hold in form.held)
        else:
            yield name, name, form


def minutes_of(part):
    """In the full form, as the report has it."""
    known = read(REPORT / "results.json")["parts"]
    return known[part]["minutes"] if part in known else GUESS.get(part, 5)


def measure(todo, systems, results, full):
    """Runs the parts; one that fails is reported and the others go on. What there is is saved after each."""
    failures = []
    with place.start() as server:
        arena = place.Arena(server)
        facts = machine.facts(arena)
        for system in systems:
            system.create(arena, system.name)
        for number, (part, name, form) in enumerate(todo):
            bench = Bench(arena, systems, form)
            if full:
                left = sum(minutes_of(other) for other, _, _ in todo[number:])
                bench.say(f"part {number + 1} of {len(todo)}: {part}, about {minutes_of(part):.0f} minutes; all that is left takes about {left:.0f}")
            began, load = time.time(), os.getloadavg()[0]

            def save(complete=False, part=part, bench=bench, began=began, load=load):
                minutes = round((time.time() - began) / 60, 1)
                more = {"began": began, "minutes": minutes, "load before": round(load, 2), "failed": bench.failed, "complete": complete}
                results.save(part, {**facts, **more}, bench.samples)

            bench.save = save
            try:
                WORKLOADS[name].run(bench)
            except Exception as error:  # the others still have something to say
                traceback.print_exc()
                bench.failed.append(f"{type(error).__name__}: {error}")
            save(complete=True)
            failures += bench.failed
    return failures


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--full", action="store_true", help="everything, about two hours, or what is still missing of it")
    parser.add_argument("--systems", default="", help=",".join(system.name for system in ALL))
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--hold", choices=held.HOLDS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--installed", action="store_true", help="outbox as it is installed, not built again")
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
    return arguments, names, form


def command_of(arguments):
    """How to measure it again, without the paths of this machine."""
    given = [("--full", arguments.full or None), ("--systems", arguments.systems or None), ("--seconds", arguments.seconds)]
    given += [("--rounds", arguments.rounds), ("--hold", arguments.hold)]
    options = [f"{name} {value}" if value is not True else name for name, value in given if value is not None]
    return " ".join(["python3 benches/run.py", *options, *arguments.workloads])


def output_of(arguments, commit):
    """Where the report goes, and whether it is the full one: another commit begins from nothing."""
    whole = arguments.full and not (arguments.systems or arguments.seconds or arguments.rounds or arguments.hold or arguments.output)
    output = arguments.output or setup.area() / "bench" / ("full" if whole else "report")
    if whole and not Results(output, "", [], {}).is_of(commit):
        shutil.rmtree(output)
    return output, whole


def main():
    arguments, chosen, form = parse()
    systems, missing = prepared(chosen, arguments.installed)
    commit = next((system.version for system in systems if system.name == "outbox"), None)
    output, whole = output_of(arguments, commit)
    results = Results(output, command_of(arguments), systems, missing)
    every = [name for name in WORKLOADS if name not in BY_NAME]
    todo = list(parts(arguments.workloads or every, form))
    if whole and not arguments.workloads:
        todo = [part for part in todo if not results.has(part[0])]
    failures = measure(todo, systems, results, arguments.full)
    missed = [part for part, _, _ in parts(every, form) if not results.has(part)] if whole else []
    if whole and not missed:
        shutil.copytree(output, REPORT, dirs_exist_ok=True)
        for old in {file.name for file in REPORT.glob("*.svg")} - {file.name for file in output.glob("*.svg")}:
            (REPORT / old).unlink()
    print(f"\n{report.bars_as_text(results.samples)}\n\n{(REPORT if whole and not missed else output) / 'README.md'}")
    if missed:
        left = sum(map(minutes_of, missed))
        print(f"still to be measured, about {left:.0f} minutes: {', '.join(missed)}; run the same again")
    for failure in failures:
        print(f"failed: {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
