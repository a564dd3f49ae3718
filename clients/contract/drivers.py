"""The drivers: where each comes from, how its runner is started, and the modes in which it is tried."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import setup
import tools
from tools import HERE, Hole

RUNNERS = HERE / "runners"
# ways to pass parameters; every driver is tried in those that it has
TYPED = {"params": "typed"}  # values of the language's own types
TEXT = {"params": "text"}  # strings, and the server decides
CAST = {"params": "cast"}  # strings, and the statement says $1::text::uuid
POSITIONAL = {"notation": "positional"}


class Driver:
    name = language = style = ""
    modes = {}  # label: options; `through` names the pooler
    differs = {}  # case, or class: what a user must know; the case is not expected to pass
    notes = ()
    short = ()  # the modes of the short form

    def prepare(self, environment):
        """(command, environment) of its runner; raises Hole."""
        raise NotImplementedError

    def version(self):
        return ""


class Python(Driver):
    language = "Python"
    file = None

    def prepare(self, environment):
        home = tools.python_packages()
        return [sys.executable, RUNNERS / self.file], dict(environment, PYTHONPATH=str(home))


class Psycopg(Python):
    name, style, file = "psycopg 3", "percent", "psycopg3.py"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "binary": TYPED | {"binary": True, "prepare": True},
        "pipeline": TYPED | {"pipeline": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }
    short = ("typed", "binary")


class Asyncpg(Python):
    name, style, file = "asyncpg", "dollar", "asyncpg_.py"
    modes = {
        "typed": TYPED,
        "positional": TYPED | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Pg8000(Python):
    name, style, file = "pg8000", "dollar", "pg8000_.py"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Node(Driver):
    language = "Node.js"
    file = None

    def prepare(self, environment):
        return ["node", tools.node_packages() / self.file], dict(environment)


class NodePg(Node):
    name, style, file = "pg", "dollar", "node_pg.mjs"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }
    without = {"binary": "its option `binary` reads bytes as UTF-8 and breaks a uuid", "pipeline": "it sends the next query after an answer"}
    short = ("typed",)


class Postgres(Node):
    name, style, file = "postgres.js", "dollar", "node_postgres.mjs"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pipeline": TYPED | {"pipeline": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


DRIVERS = [Psycopg(), Asyncpg(), Pg8000(), NodePg(), Postgres()]
