"""Runs what the pages in docs/clients show, from the pages themselves.

A block with a file name after its language (```java Shop.java) is a program. It gets a database with what the page's
SQL blocks before it made, the driver, and the rights of the role `shop`; a `text` block right after it is its output. A
program called worker is stopped with SIGTERM when nothing is left to deliver, and must have delivered all. A block without
a file name is a fragment: it may use `connection`, that of a superuser. SQL is run by psql, by a superuser.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import drivers
import setup
import tools

PAGES = setup.CHECKOUT / "docs" / "clients"
PATIENCE = 60


class Java:
    fragment = """import java.sql.*;
import java.time.*;
import java.util.*;
import org.postgresql.util.*;
public class Fragment {
    public static void main(String[] args) throws Exception {
        try (Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
%s        }
    }
}
"""
    name = "Fragment.java"

    def __init__(self, environment):
        self.bin, self.path, extra = drivers.java(environment)
        self.environment = {**environment, **extra}

    def reach(self, host, port, database, user):
        return {"JDBC_URL": f"jdbc:postgresql://{host}:{port}/{database}?user={user}"}

    def command(self, file):
        return [self.bin / "java", "-XX:TieredStopAtLevel=1", "-cp", self.path, file]


class Ruby:
    fragment = "require 'pg'\nrequire 'json'\nconnection = PG.connect\n%s"
    name = "fragment.rb"

    def __init__(self, environment):
        self.program, self.environment = drivers.ruby(environment)

    def reach(self, host, port, database, user):
        return {}

    def command(self, file):
        return [*self.program, file]


class Php:
    fragment = "<?php\n$connection = new PDO('pgsql:');\n%s"
    name = "fragment.php"

    def __init__(self, environment):
        self.program, self.environment = drivers.php(environment)

    def reach(self, host, port, database, user):
        return {}

    def command(self, file):
        return [*self.program, file]


class Python:
    fragment = """import json
from decimal import Decimal
from functools import partial
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb, set_json_loads

connection = psycopg.connect("", autocommit=True)
%s"""
    name = "fragment.py"

    def __init__(self, environment):
        self.environment = dict(environment, PYTHONPATH=str(tools.python_packages()))

    def reach(self, host, port, database, user):
        return {}

    def command(self, file):
        return [sys.executable, file]


class Js:
    name = "fragment.mjs"
    fragment = "%s"

    def __init__(self, environment):
        self.packages, self.environment = tools.node_packages(), environment

    def reach(self, host, port, database, user):
        return {}

    def command(self, file):
        (file.parent / "node_modules").symlink_to(self.packages / "node_modules")
        return ["node", file]


RUNTIMES = {"java": Java, "ruby": Ruby, "php": Php, "python": Python, "js": Js}
OURS = ["csharp", "drivers", "java", "php", "ruby"]  # the other pages are run with the libraries they show


def blocks(page):
    """(language, file or '', text) of each block of code."""
    found = re.findall(r"^ *```(\w+)(?: (\S+))?\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, file, textwrap.dedent(text)) for language, file, text in found]


def statements(text):
    """SQL that stands in strings of a language that cannot be run here."""
    for quoted in re.findall(r'"""(.*?)"""|"((?:[^"\\\n]|\\.)*)"', text, re.DOTALL):
        sql = next(filter(None, quoted), "").strip()
        if re.match(r"(SELECT|CALL|INSERT)\b", sql):
            yield sql


class Page:
    def __init__(self, path, server, environment, number):
        self.path, self.server, self.environment = path, server, environment
        self.database = f"page_{number}"
        server.createdb(self.database)
        self.runtimes = {}
        self.failures = []
        self.ran = 0

    def runtime(self, language):
        if language not in self.runtimes:
            self.runtimes[language] = RUNTIMES[language](self.environment)
        return self.runtimes[language]

    def run(self):
        found = [block for block in blocks(self.path) if block[0] not in ("sh", "xml")]
        for (language, file, text), after in zip(found, [*found[1:], ("", "", "")]):
            expected = after[2] if after[0] == "text" else None
            try:
                if language == "sql":
                    self.server.psql(text, dbname=self.database)
                elif language in RUNTIMES:
                    self.program(language, file, text, expected)
                elif language == "csharp":
                    self.prepare(text)
                else:
                    continue
                self.ran += 1
            except Exception as failure:  # whatever it is, the block does not do what the page says
                self.failures.append(f"{self.path.name}: {language} {file}: {failure}\n{text}")
        self.server.psql(f"DROP DATABASE {self.database} WITH (FORCE); DROP ROLE IF EXISTS shop")

    def program(self, language, file, text, expected):
        runtime = self.runtime(language)
        folder = Path(tempfile.mkdtemp(prefix="snippet-", dir=setup.temporary_directory()))
        try:
            source = folder / (file or runtime.name)
            source.write_text(text if file else runtime.fragment % text)
            user = "shop" if file and language not in ("python", "js") else "postgres"
            here = {"PGHOST": "127.0.0.1", "PGPORT": str(self.server.port), "PGUSER": user, "PGDATABASE": self.database}
            here |= runtime.reach("127.0.0.1", self.server.port, self.database, user)
            process = subprocess.Popen(
                [*map(str, runtime.command(source))],
                env={**runtime.environment, **here},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if Path(file).stem.lower() == "worker":
                self.stop_when_delivered(process)
            said, _ = process.communicate(timeout=PATIENCE)
            if process.returncode not in (0, 128 + signal.SIGTERM if language == "java" else 0):
                raise RuntimeError(f"it ended with {process.returncode}\n{said}")
            if expected is not None and said.strip() != expected.strip():
                raise RuntimeError(f"it said\n{said}")
        finally:
            shutil.rmtree(folder)

    def stop_when_delivered(self, process):
        left = "SELECT count(*) FROM outbox.message WHERE state <> 'delivered'"
        deadline = time.monotonic() + PATIENCE
        while self.server.psql(left, dbname=self.database) != "0":
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"it did not deliver all\n{process.communicate()[0]}")
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)

    def prepare(self, text):
        """The statements are right, though the program around them is not run."""
        with self.server.connect(self.database, autocommit=True) as connection:
            for number, sql in enumerate(statements(text)):
                if sql.startswith("CALL"):
                    sql = re.sub(r"^CALL outbox\.wait\(.*\)$", "SELECT 1", sql)
                connection.execute(f"PREPARE snippet_{number} AS {sql}")
            connection.execute("DEALLOCATE ALL")


def run(server, environment, names=None):
    """(how many blocks ran, [what failed]) of the named pages, or of all that are ours."""
    ran, failures = 0, []
    for number, name in enumerate(names or OURS):
        page = Page(PAGES / f"{name}.md", server, environment, number)
        page.run()
        ran += page.ran
        failures += page.failures
    return ran, failures
