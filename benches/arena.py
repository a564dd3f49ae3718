"""The one server everything is measured on: its settings, and what it spent meanwhile.

WAL is the distance between two insert positions, CPU the user and system time of all processes of the server,
those that ended included. Both count for the whole server, so only one system works at a time.
"""

import os
import time
from pathlib import Path

from server import Server, children

# Modest, and durable: fsync is on. What is not named here is PostgreSQL's default.
CONF = {
    "fsync": True,
    "full_page_writes": True,
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": 60,
    "shared_preload_libraries": "outbox",
}
TICKS = os.sysconf("SC_CLK_TCK")


class Arena:
    """A running server with a database for each system."""

    def __init__(self, server):
        self.server = server

    def sql(self, text, database):
        return self.server.psql(text, dbname=database)

    def connect(self, database, **options):
        return self.server.connect(database, autocommit=True, **options)

    def create(self, database, template=None):
        clone = f' TEMPLATE "{template}"' if template else ""
        self.server.psql(f'CREATE DATABASE "{database}"{clone}')

    def drop(self, database):
        self.server.psql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def settle(self):
        """Nobody pays for what happened before: dirty pages are written."""
        self.server.psql("CHECKPOINT")

    def wal(self):
        return int(self.server.psql("SELECT pg_current_wal_insert_lsn() - '0/0'").split(".")[0])

    def cpu(self):
        """Seconds all processes of the server have worked."""
        postmaster = self.server.pid()
        while True:  # a backend that ends meanwhile would be missed, or counted twice
            before = children(postmaster)
            ticks = sum(times(postmaster, 4)) + sum(sum(times(child, 2)) for child in before)
            if children(postmaster) == before:
                return ticks / TICKS


def times(pid, count):
    """utime, stime and, with a count of 4, those of children that were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [0]
    return [int(field) for field in fields[11 : 11 + count]]


class Meter:
    """What the server spent inside a `with` block: `wal` in bytes, `cpu` and `seconds`."""

    def __init__(self, arena):
        self.arena = arena

    def __enter__(self):
        self.wal, self.cpu, self.seconds = -self.arena.wal(), -self.arena.cpu(), -time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds += time.monotonic()
        self.wal += self.arena.wal()
        self.cpu += self.arena.cpu()


class Backends:
    """CPU of these sessions, in seconds. What the server does besides, autovacuum above all, is not in it."""

    def __init__(self, *connections):
        self.pids = [connection.info.backend_pid for connection in connections]

    def cpu(self):
        return sum(map(worked, self.pids))


def worked(pid):
    """Where the kernel says it, to the nanosecond; else in ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return sum(times(pid, 2)) / TICKS


def start(**conf):
    return Server(conf={**CONF, **conf})
