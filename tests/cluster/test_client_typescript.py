"""The TypeScript client, from the file that npm packs, in a project that has nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest
from client_scenario import *  # noqa: F403: the tests

PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "typescript"
RUN = """#!/bin/sh
exec node "{example}" "$@"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    home = tmp_path_factory.mktemp("typescript")

    def npm(*arguments, cwd):
        subprocess.run(["npm", *arguments, "--silent", "--no-audit", "--no-fund"], cwd=cwd, check=True, timeout=300)

    shutil.copytree(PACKAGE, home / "source", ignore=shutil.ignore_patterns("node_modules", "dist", "*.tgz"))
    npm("ci", cwd=home / "source")
    npm("pack", cwd=home / "source")
    user = home / "user"
    user.mkdir()
    (user / "package.json").write_text('{"private": true, "type": "module"}')
    npm("install", str(home / "source" / "outbox-client-0.1.0.tgz"), "pg@8.16.3", cwd=user)
    for name in ("deliver", "produce"):
        shutil.copy(user / "node_modules" / "outbox-client" / "examples" / f"{name}.mjs", user)
        (home / name).write_text(RUN.format(example=user / f"{name}.mjs"))
        (home / name).chmod(0o755)
    return home
