"""What a reader must know of the machine and the server to judge the numbers. No names of hosts, no paths."""

import os
import platform
from pathlib import Path

import pgbench
from arena import CONF


def facts(arena):
    shown = [*CONF, "synchronous_commit", "autovacuum", "autovacuum_naptime", "wal_level", "max_connections"]
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(shown))
    rows = arena.server.psql(f"SELECT name, current_setting(name) FROM pg_settings WHERE name IN ({names}) ORDER BY 1")
    return {
        "machine": f"{os.cpu_count()} cores ({processor()}), {memory()} GB of memory",
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "postgresql": arena.server.psql("SHOW server_version"),
        "settings": dict(line.split("|", 1) for line in rows.splitlines()),
        "commit": f"{commit_time(arena):.2f} ms",
    }


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def memory():
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def commit_time(arena):
    """Milliseconds of a transaction of one client that only waits for the disk: how fast is fsync here?"""
    done = pgbench.run(arena, "postgres", "SELECT pg_logical_emit_message(true, 'bench', 'x');\n", seconds=1)
    return done.seconds / done.transactions * 1000
