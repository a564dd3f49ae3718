#!/usr/bin/env python3
"""Everything `make test` runs, tier by tier, and the sum at the end.

A tier that fails does not stop the next ones. A tier without a single test fails, and a skipped
test is a failed test: both look like success and are not.
"""

import re
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as xml

import build
import check
import regress
import setup
from server import Server


def environment():
    return setup.prepare()


def features():
    return ["--no-default-features", "--features", f"pg{environment()['PG']}"]


def succeeds(*command):
    """One test: the program's exit code."""
    done = subprocess.run(command, cwd=setup.CHECKOUT, env=environment())
    return (1, 0) if done.returncode == 0 else (0, 1)


def check_format():
    return succeeds("cargo", "fmt", "--all", "--check")


def check_lint():
    return succeeds("cargo", "clippy", "--workspace", "--all-targets", *features(), "--", "-D", "warnings")


def install():
    build.install()
    return 1, 0


def units():
    """Unit and property tests of the rules; they link no PostgreSQL and need no server."""
    command = ["cargo", "test", "--package", "outbox-rules"]
    process = subprocess.Popen(
        command, cwd=setup.CHECKOUT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    passed = failed = 0
    for line in process.stdout:
        print(line, end="", flush=True)
        counts = re.match(r"test result: .* (\d+) passed; (\d+) failed; (\d+) ignored", line)
        if counts:
            passed += int(counts[1])
            failed += int(counts[2]) + int(counts[3])
    return passed, failed or (process.wait() != 0)


def on_a_server(kind):
    with Server(conf=regress.CONF) as server:
        return regress.run(kind, None, server.env)


def cluster():
    """Programs that need restarts, standbys or many clients, each with clusters of its own."""
    report = setup.area() / "cluster.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "tests/cluster", f"--junitxml={report}"]
    command += ["-ra", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=setup.CHECKOUT, env=environment())
    if not report.exists():
        return 0, 1
    suites = xml.parse(report).getroot().iter("testsuite")
    counts = [[int(s.get(k)) for k in ("tests", "failures", "errors", "skipped")] for s in suites]
    tests, *bad = map(sum, zip(*counts))
    return tests - sum(bad), sum(bad) or (done.returncode != 0)


def demo(*options):
    """A short demo: its exit code says whether the books balance."""
    return succeeds(sys.executable, "demo/run.py", "--messages", "3000", "--stop", *options)


TIERS = {
    "format": check_format,
    "lint": check_lint,
    "install": install,
    "check": check.run,
    "units": units,
    "regress": lambda: on_a_server(regress.KINDS[0]),
    "isolation": lambda: on_a_server(regress.KINDS[1]),
    "cluster": cluster,
    "demo": demo,
    "crash": lambda: demo("--crash", "1"),
}


def run(name, tier):
    print(f"\n== {name}", flush=True)
    started = time.monotonic()
    try:
        passed, failed = tier()
    except Exception:  # whatever it was, the other tiers still have something to say
        traceback.print_exc()
        passed, failed = 0, 1
    if passed + failed == 0:
        print("no test found, which counts as a failure")
        failed = 1
    seconds = time.monotonic() - started
    return passed, int(failed), f"{name:10} {passed:5} passed, {failed:3} failed {seconds:8.1f} s"


def main():
    setup.prepare()
    results = [run(name, tier) for name, tier in TIERS.items()]
    print("\n== summary")
    for _, _, line in results:
        print(line)
    passed, failed = (sum(column) for column in list(zip(*results))[:2])
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
