"""Systems whose public interface is a Node library: a small driver in Node does what pgbench does for the others.

The driver prints one line, {"transactions": …, "seconds": …}, timed by itself, so that starting Node does not count.
"""

import json
import shutil
import subprocess
from pathlib import Path

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

    def node(self, arena, database, action, sync=True, **arguments):
        environment = {
            **arena.server.env,
            "PGDATABASE": database,
            "PGOPTIONS": f"-c synchronous_commit={'on' if sync else 'off'}",
            "NODE_ENV": "production",
        }
        given = json.dumps({"action": action, "topic": payload.TOPIC, **arguments})
        with Meter(arena) as meter:
            done = subprocess.run(
                ["node", self.driver, given], cwd=self.home, env=environment, capture_output=True, text=True
            )
        if done.returncode != 0:
            raise RuntimeError(f"{self.driver} {action} failed\n{done.stderr[-1000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        return pgbench.Run(said["transactions"], said["seconds"], meter.wal, meter.cpu)
