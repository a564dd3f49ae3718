"""The contract's cases through two drivers; `make clients` runs them through all."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_contract_through_psycopg_and_node():
    command = [sys.executable, CHECKOUT / "clients/contract/run.py", "--short", "--no-install"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
