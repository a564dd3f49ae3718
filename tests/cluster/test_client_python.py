"""The Python client, from its wheel, in a folder that has nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from client_scenario import *  # noqa: F403: the tests

PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "python" / "outbox-client"
RUN = """#!/bin/sh
PYTHONPATH="{packages}:$PYTHONPATH" exec "{python}" "{example}" "$@"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    home = tmp_path_factory.mktemp("python")
    shutil.copytree(PACKAGE, home / "source")  # it leaves files where it is built
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", home, home / "source"], check=True, timeout=300)
    (wheel,) = home.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", home / "packages", wheel], check=True, timeout=300)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # where psycopg is
    for name in ("deliver", "produce"):
        (home / name).write_text(RUN.format(packages=home / "packages", python=sys.executable, example=PACKAGE / "examples" / f"{name}.py"))
        (home / name).chmod(0o755)
    return home


def test_the_double_passes_the_core_of_the_contract(programs):
    suite = PACKAGE.parents[1] / "contract" / "run.py"
    path = os.pathsep.join([str(programs / "packages"), os.environ["PYTHONPATH"]])
    command = [sys.executable, suite, "--double", f"{sys.executable} {PACKAGE / 'examples' / 'double.py'}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-4]) > 300
