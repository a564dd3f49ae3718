#!/usr/bin/env python3
"""The contract through real drivers.

    python3 clients/contract/run.py                     every driver in every mode; a table
    python3 clients/contract/run.py --short             two drivers, the quick cases
    python3 clients/contract/run.py --drivers 'psycopg 3,pg' --classes claim,key --modes typed
    python3 clients/contract/run.py --write             and write the tables into docs/clients/drivers.md
    python3 clients/contract/run.py --pages java        what this page shows, and nothing else
    python3 clients/contract/run.py --install port.sql  another implementation of the same SQL
    python3 clients/contract/run.py --runner 'node my-runner.mjs'        another driver
    python3 clients/contract/run.py --double 'python3 my-double.py'      the core, without a database

One line of JSON per case goes to contract.jsonl in the build area. The exit code says whether all is well.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "dev"))
import build  # noqa: E402
import drivers  # noqa: E402
import setup  # noqa: E402
import snippets  # noqa: E402
import suite  # noqa: E402
import table  # noqa: E402
from pooler import Pooler  # noqa: E402
from server import Server  # noqa: E402
from tools import Hole  # noqa: E402

CONF = {"listen_addresses": "127.0.0.1", "max_prepared_transactions": 20, "max_connections": 200}
SHOWN = 4  # failures of a driver in a mode; the others are in contract.jsonl
AT_ONCE = 4  # jobs; most of their time is waiting


class Suite:
    def __init__(self, server, arguments):
        self.server = server
        self.short = arguments.short
        self.classes = suite.load()
        if arguments.classes:
            self.classes = {name: self.classes[name] for name in arguments.classes.split(",")}
        self.install = Path(arguments.install).read_text() if arguments.install else "CREATE EXTENSION outbox"
        self.age = Path(arguments.age or HERE / "age.sql").read_text()
        self.report = open(setup.area() / "contract.jsonl", "w")
        (setup.area() / "contract.log").write_bytes(b"")  # what runners say on stderr
        self.poolers = {}
        self.probes = {}
        self.lock = threading.Lock()

    def pooler(self, name):
        with self.lock:
            if name not in self.poolers:
                try:
                    self.poolers[name] = Pooler(self.server, name)
                except Hole as hole:
                    self.poolers[name] = hole
            if isinstance(self.poolers[name], Hole):
                raise self.poolers[name]
            return self.poolers[name]

    def job(self, number, driver, label, runner):
        """All cases through one driver in one mode: a list of results."""
        mode = driver.modes[label]
        command, environment = runner
        name = f"j{number}"
        pooler = self.pooler(mode["through"]) if "through" in mode else None
        port = pooler.port if pooler else self.server.port
        with self.lock:
            self.server.createdb(name)
            self.server.psql(self.install, dbname=name)
        here = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGDATABASE": name}
        with open(setup.area() / "contract.log", "ab") as log:
            run = suite.Run(
                name,
                lambda **more: suite.Session(command, {**mode, **more}, {**environment, **here}, log),
                suite.Dialect(driver.style, mode),
                lambda seconds: self.server.psql(self.age.replace("{seconds}", str(seconds)), dbname=name),
            )
            started = time.monotonic()
            results, bad = [], 0
            first = label == next(iter(driver.modes)) and not self.short
            for result in run.run(self.classes if first else suite.quick(self.classes)):
                key = next((k for k in (f"{label}/{result['case']}", result["case"], result["class"]) if k in driver.differs), None)
                result = {"driver": driver.name, "mode": label, **result, "differs": driver.differs.get(key)}
                results.append(result)
                with self.lock:
                    self.report.write(json.dumps(result, ensure_ascii=False) + "\n")
                    if not result["ok"] and not result["differs"]:
                        bad += 1
                        if bad <= SHOWN:
                            print(f"{driver.name}, {label}: {result['class']}: {result['case']}\n    {result['why']}", flush=True)
            if label == driver.habit:
                self.probes.setdefault(driver.name, {}).update(run.probe())
            run.reset()
            if mode.get("through") == "new pgbouncer":  # and what happens with one that knows no prepared statements
                here["PGPORT"] = str(self.pooler("pgbouncer").port)
                self.probes.setdefault(driver.name, {})["old pooler"] = run.prepared_alternately()
                run.reset()
        print(f"{driver.name:15} {label:24} {len(results)} cases, {bad} failed, {time.monotonic() - started:5.1f} s", flush=True)
        return results

    def close(self):
        self.report.close()
        for pooler in self.poolers.values():
            if isinstance(pooler, Pooler):
                pooler.close()


def prepared(chosen, environment):
    """{driver: (command, environment)} and {driver: why not}."""
    ready, holes = {}, {}
    for driver in chosen:
        try:
            ready[driver] = driver.prepare(environment)
        except Hole as hole:
            holes[driver.name] = str(hole)
            print(f"{driver.name}: {hole}", flush=True)
    return ready, holes


def run(arguments):
    environment = setup.prepare()
    names = arguments.drivers.split(",") if arguments.drivers else None
    chosen = [d for d in drivers.DRIVERS if (d.name in names if names else d.short or not arguments.short)]
    chosen = [drivers.Given(arguments.runner, arguments.style)] if arguments.runner else chosen
    ready, holes = prepared(chosen, environment)
    labels = {d: arguments.modes.split("/") if arguments.modes else d.short if arguments.short else list(d.modes) for d in ready}
    results = []
    with Server(conf=CONF) as server:
        tested = Suite(server, arguments)
        try:
            jobs = [(driver, label) for driver in ready for label in labels[driver] if label in driver.modes]
            jobs.sort(key=lambda job: job[1])
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                futures = {pool.submit(tested.job, n, d, label, ready[d]): (d, label) for n, (d, label) in enumerate(jobs)}
                for future, (driver, label) in futures.items():
                    try:
                        results += future.result()
                    except Hole as hole:
                        holes[f"{driver.name}, {label}"] = str(hole)
        finally:
            tested.close()
    return table.Outcome(list(ready), results, tested.probes, holes, {d.name: d.version(environment) for d in ready})


def double(command):
    """The core of the cases through a runner that has no database and a clock of its own; the exit code."""
    dialect = suite.Dialect("dollar", {})
    run = suite.Run("double", lambda: suite.Session(command.split(), {"params": "typed"}, os.environ, None), dialect, None)
    results = list(run.run(suite.core(suite.load())))
    for result in results:
        if not result["ok"]:
            print(f"{result['class']}: {result['case']}\n    {result['why']}")
    passed = sum(result["ok"] for result in results)
    print(f"{passed} passed, {len(results) - passed} failed")
    return 1 if passed < len(results) else 0


def pages(names=None):
    """(blocks that ran, failures) of what the pages show."""
    with Server(conf=CONF) as server:
        ran, failures = snippets.run(server, setup.prepare(), names)
    for failure in failures:
        print(failure, flush=True)
    print(f"{ran} blocks of the pages ran, {len(failures)} failed", flush=True)
    return ran, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two drivers, the quick cases")
    parser.add_argument("--drivers", help="names between commas")
    parser.add_argument("--classes", help="names between commas")
    parser.add_argument("--modes", help="labels between slashes")
    parser.add_argument("--no-install", action="store_true", help="the extension is installed")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--pages", help="only the pages of these names, between commas")
    parser.add_argument("--install", help="SQL that makes another implementation, instead of CREATE EXTENSION")
    parser.add_argument("--age", help="SQL that lets {seconds} pass for what is over, instead of age.sql")
    parser.add_argument("--runner", help="command of a runner of your own; its mode comes as the last argument")
    parser.add_argument("--style", default="dollar", choices=("dollar", "percent", "question"), help="its placeholders")
    parser.add_argument("--double", help="command of a runner without a database")
    arguments = parser.parse_args()
    if arguments.double:
        return double(arguments.double)
    if not arguments.no_install:
        build.install()
    started = time.monotonic()
    if arguments.pages:
        ran, failures = pages(arguments.pages.split(","))
        return 1 if failures or not ran else 0
    outcome = run(arguments)
    print(outcome.markdown())
    if arguments.write:
        outcome.write()
    failed = sum(not r["ok"] and not r["differs"] for r in outcome.results) + len(outcome.holes)
    for r in outcome.results:  # what a page says of a driver is not so, and that is a failure too
        if r["ok"] and r["differs"]:
            failed += 1
            print(f"{r['driver']}, {r['mode']}: {r['case']}: it works, though drivers.py says: {r['differs']}")
    passed = sum(r["ok"] and not r["differs"] for r in outcome.results)
    if arguments.write:
        ran, failures = pages()
        passed, failed = passed + ran, failed + len(failures)
    print(f"{time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
