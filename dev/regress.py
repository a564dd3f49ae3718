#!/usr/bin/env python3
"""Run the regression tests and isolation specs, each on a database of its own.

    python3 dev/regress.py                      build, install, run all of both
    python3 dev/regress.py claim settle         only the tests and specs with these names
    python3 dev/regress.py --only isolation     one kind (regress or isolation)
    python3 dev/regress.py --accept claim       take what it prints now as what is expected
    python3 dev/regress.py --running            on the server of PGHOST, PGPORT, PGUSER (installcheck)

tests/pg_regress/sql/NAME.sql is run by pg_regress in a fresh database `regression` and must
print tests/pg_regress/expected/NAME.out; tests/isolation/specs/NAME.spec by pg_isolation_regress
in a fresh `isolation_regression`, to print tests/isolation/expected/NAME.out. The extension is
created there already. A further right answer, for another major version say, is NAME_1.out.
A test without an expected file fails, and so does an expected file without a test.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import build
import setup
from server import Server

CONF = {"max_prepared_transactions": 10}


class Kind(NamedTuple):
    name: str
    folder: Path  # holds the tests and `expected`
    suffix: str
    database: str

    @property
    def tests(self):
        where = {".sql": "sql", ".spec": "specs"}[self.suffix]
        return {file.stem: file for file in sorted((self.folder / where).glob("*" + self.suffix))}

    @property
    def expected(self):
        return {file.stem: file for file in sorted((self.folder / "expected").glob("*.out"))}


TESTS = setup.CHECKOUT / "tests"
KINDS = [
    Kind("regress", TESTS / "pg_regress", ".sql", "regression"),
    Kind("isolation", TESTS / "isolation", ".spec", "isolation_regression"),
]


def orphans(kind):
    """Expected files that belong to no test: what a rename leaves behind."""
    stems = {name: re.sub(r"_\d$", "", name) for name in kind.expected}
    return [f for n, f in kind.expected.items() if n not in kind.tests and stems[n] not in kind.tests]


def unexpected(kind):
    """Tests without an expected file."""
    return [file for name, file in kind.tests.items() if name not in kind.expected]


def program(kind, environment):
    regress, isolation = setup.test_programs(environment["PG_CONFIG"])
    return regress if kind.name == "regress" else isolation


def run_one(kind, name, environment, outputs):
    """Returns the difference to what is expected: empty when the test passed."""
    command = [program(kind, environment), f"--inputdir={kind.folder}", f"--outputdir={outputs}"]
    command += [f"--bindir={Path(setup.output(environment['PG_CONFIG'], '--bindir'))}"]
    command += ["--load-extension=outbox", f"--dbname={kind.database}", name]
    for option in ("host", "port", "user"):
        if environment.get("PG" + option.upper()):
            command.append(f"--{option}={environment['PG' + option.upper()]}")
    libraries = setup.output(environment["PG_CONFIG"], "--libdir")
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(environment, LD_LIBRARY_PATH=libraries),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return ""
    diffs = outputs / "regression.diffs"
    text = diffs.read_text(errors="replace") if diffs.exists() else ""
    return text or done.stdout


def run(kind, names, environment, accept=False):
    """Run these tests (None: all); prints a line each; returns (passed, failed)."""
    passed = failed = 0
    for name in kind.tests:
        if names is not None and name not in names:
            continue
        with tempfile.TemporaryDirectory(dir=setup.area(), prefix=f"{kind.name}-") as outputs:
            expected = kind.folder / "expected" / f"{name}.out"
            if accept and not expected.exists():
                expected.parent.mkdir(exist_ok=True)
                expected.touch()  # or it would not be run at all
            difference = run_one(kind, name, environment, Path(outputs))
            result = Path(outputs) / "results" / f"{name}.out"
            if difference and accept and result.exists():
                shutil.copyfile(result, expected)
                print(f"{kind.name:10} {name:30} accepted", flush=True)
                continue
            if result.exists() and not expected.exists():
                difference = f"There is no expected file; it prints:\n{result.read_text()}"
        passed, failed = (passed, failed + 1) if difference else (passed + 1, failed)
        print(f"{kind.name:10} {name:30} {'FAILED' if difference else 'ok'}", flush=True)
        print(difference, end="", flush=True)
    for orphan in orphans(kind) if names is None else ():
        print(f"{kind.name:10} {orphan.name:30} FAILED: an expected file without a test", flush=True)
        failed += 1
    return passed, failed


@contextlib.contextmanager
def environment_of(running):
    """Of the server asked for: the one that runs, or a throw-away one."""
    if running:
        yield setup.prepare(embedded=False)
    else:
        with Server(conf=CONF) as server:
            yield server.env


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="tests to run (default: all)")
    parser.add_argument("--only", choices=[kind.name for kind in KINDS])
    parser.add_argument("--accept", action="store_true", help="write the expected files")
    parser.add_argument("--running", action="store_true", help="use the server of PGHOST, PGPORT")
    parser.add_argument("--no-install", action="store_true", help="test what is installed")
    arguments = parser.parse_args()
    if not (arguments.running or arguments.no_install):
        build.install()
    kinds = [kind for kind in KINDS if arguments.only in (None, kind.name)]
    unknown = set(arguments.names).difference(*(kind.tests for kind in kinds))
    if unknown:
        raise setup.Missing(f"no test named {', '.join(sorted(unknown))}")
    with environment_of(arguments.running) as environment:
        results = [run(k, arguments.names or None, environment, arguments.accept) for k in kinds]
    passed, failed = map(sum, zip(*results))
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(setup.friendly(main))
