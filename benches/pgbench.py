"""pgbench as the client: thin, so that the server is what is measured.

Prepared mode sends each variable as a parameter. So a payload is text that the server parses at every call, as it
does for a driver, and `\\gset` followed by `:ids::uuid[]` carries an array from one transaction to the next. What is
too large for an argument of a program is written into the script, and parsed at every call too.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass

from arena import Meter


LARGEST = 100_000  # bytes; Linux allows 128 kB
PATIENCE = 300  # seconds; what takes longer has failed


@dataclass
class Run:
    transactions: int
    seconds: float
    wal: int
    cpu: float


def run(arena, database, script, clients=1, seconds=None, transactions=None, sync=True, variables=None):
    """Run a script for that long, or that many times per client."""
    large = {name: value for name, value in (variables or {}).items() if len(value) > LARGEST}
    for name, value in large.items():
        literal = f"'{value}'"
        script = re.sub(rf"(?<!:):{name}\b", lambda _, literal=literal: literal, script)
    command = [arena.server.bin("pgbench"), "--no-vacuum", f"--client={clients}"]
    command += [f"--protocol={'simple' if large else 'prepared'}"]
    command += [f"--jobs={min(clients, 2)}"]
    command += [f"--time={seconds}"] if seconds else [f"--transactions={transactions}"]
    for name, value in (variables or {}).items():
        command += [] if name in large else ["-D", f"{name}={value}"]
    environment = {**arena.server.env, "PGOPTIONS": f"-c synchronous_commit={'on' if sync else 'off'}"}
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        with Meter(arena) as meter:
            done = subprocess.run(
                [*command, f"--file={file.name}", database], env=environment, capture_output=True, text=True, timeout=PATIENCE
            )
    if done.returncode != 0:
        raise RuntimeError(f"pgbench failed in {database}\n{script[:500]}\n{done.stderr[-1000:]}")
    count = int(re.search(r"actually processed: (\d+)", done.stdout)[1])
    rate = float(re.search(r"tps = ([\d.]+) \(without", done.stdout)[1])
    return Run(count, count / rate if rate else meter.seconds, meter.wal, meter.cpu)
