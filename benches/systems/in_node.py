"""Systems whose public interface is a Node library: a small driver in Node does what pgbench does for the others.

The driver prints one line, {"transactions": …, "seconds": …}, timed by itself, so that starting Node does not count.
Under a paced load it prints {"claims": [ms, …], "late": [ms, …]} ten times a second, until its standard input ends.
"""

import json
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pace
import payload
import peers
import pgbench
from arena import Meter
from systems.system import System

DRIVERS = Path(__file__).resolve().parent.parent / "node"


class InNode(System):
    driver = ""

    def prepare(self, environment):
        self.home = peers.node_modules()
        for file in DRIVERS.glob("*.mjs"):  # imports are looked up beside the file
            shutil.copy(file, self.home)
        package = self.home / "node_modules" / self.name / "package.json"
        return json.loads(package.read_text())["version"]

    def command(self, arena, database, action, sync=True, **arguments):
        """What subprocess needs to start the driver."""
        environment = {
            **arena.server.env,
            "PGDATABASE": database,
            "PGOPTIONS": f"-c synchronous_commit={'on' if sync else 'off'}",
            "NODE_ENV": "production",
            "NO_LOG_SUCCESS": "1",
        }
        given = json.dumps({"action": action, "topic": payload.TOPIC, **arguments})
        return {"args": ["node", self.driver, given], "cwd": self.home, "env": environment, "text": True}

    def node(self, arena, database, action, sync=True, **arguments):
        command = self.command(arena, database, action, sync, **arguments)
        with Meter(arena) as meter:
            done = subprocess.run(**command, capture_output=True, timeout=pgbench.PATIENCE)
        if done.returncode != 0:
            raise RuntimeError(f"{self.driver} {action} failed\n{done.stderr[-1000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        return pgbench.Run(said["transactions"], said["seconds"], meter.wal, meter.cpu)

    def paced(self, action):
        """For `processes`: the driver with an action that goes on until the load is over."""
        return partial(drive, action)


def drive(action, arena, database, system, load):
    given = {"start": load.start, "rate": load.rate, "seconds": load.seconds, "group": load.group, "fails": load.fails}
    command = system.command(arena, database, action, payload=payload.one(300, at=0.0), **given)
    notes = pace.Notes(load)
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as node:
            for line in node.stdout:
                said = json.loads(line)
                notes.claimed(*said["claims"])
                notes.completed(*said["late"])
                if load.over.is_set() and not node.stdin.closed:
                    node.stdin.close()
        if node.returncode != 0:
            errors.seek(0)
            raise RuntimeError(f"{system.driver} failed\n{errors.read()[-1000:]}")
    return {"claims": notes.claims, "late": notes.late}
