"""The drivers: where each comes from, how its runner is started, and the modes in which it is tried."""

import json
import os
import re
import shutil
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


NUL = "a NUL byte in a topic: 22021"
CUT = "text ends at a NUL byte, without an error"
ONE = "the next statement is sent when the one before is answered"
SERVER_TYPES = "the server says the types, and values must be of them"
ALWAYS = "always"
SIMPLE = "the simple protocol cannot carry a NUL byte: 08P01 and not 22021"


class Driver:
    name = language = style = package = ""
    modes = {}  # label: options; `through` names the pooler
    differs = {}  # case, or class: what a user must know; the case is not expected to pass
    without = {}  # way of work: why it is not tried
    habit = "typed"  # the mode that a user is in who does nothing for it
    short = ()  # the modes of the short form

    def prepare(self, environment):
        """(command, environment) of its runner; raises Hole."""
        raise NotImplementedError

    def version(self, environment):
        """As its users write it; Debian's without its own part, unless the class knows better."""
        return re.sub(r"^\d+:|[-+~].*$", "", tools.debian_version(self.package))


class Python(Driver):
    language = "Python"
    file = package = None

    def version(self, environment):
        pins = (HERE / "requirements.txt").read_text()
        return re.search(rf"^{self.package}\b.*==(.*)", pins, re.MULTILINE)[1]

    def prepare(self, environment):
        home = tools.python_packages()
        return [sys.executable, RUNNERS / self.file], dict(environment, PYTHONPATH=str(home))


class Psycopg(Python):
    name, package, style, file = "psycopg 3", "psycopg", "percent", "psycopg3.py"
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
    name, package, style, file = "asyncpg", "asyncpg", "dollar", "asyncpg_.py"
    without = {"untyped": SERVER_TYPES, "binary": ALWAYS, "pipeline": ONE}
    modes = {
        "typed": TYPED,
        "positional": TYPED | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Pg8000(Python):
    name, package, style, file = "pg8000", "pg8000", "dollar", "pg8000_.py"
    without = {"binary": "results are asked for as text", "pipeline": ONE}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer", "wrap": True},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Node(Driver):
    language = "Node.js"
    file = package = None

    def version(self, environment):
        return json.loads((HERE / "package.json").read_text())["dependencies"][self.package]

    def prepare(self, environment):
        return ["node", tools.node_packages() / self.file], dict(environment)


class NodePg(Node):
    name, package, style, file = "pg", "pg", "dollar", "node_pg.mjs"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }
    without = {"binary": "its option `binary` reads bytes as UTF-8 and so breaks a uuid", "pipeline": ONE}
    short = ("typed",)


class Postgres(Node):
    name, package, style, file = "postgres.js", "postgres", "dollar", "node_postgres.mjs"
    differs = {
        "untyped, positional/dry_run only counts": "where a boolean is due, every string is false, also 'true': pass true and false",
    }
    without = {"binary": "results are asked for as text"}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pipeline": TYPED | {"pipeline": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Ruby(Driver):
    name, language, style = "ruby-pg", "Ruby", "dollar"
    package = "ruby-pg"
    habit = "untyped, positional"
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "binary": TYPED | {"binary": True},
        "pipeline": TYPED | {"pipeline": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }

    def prepare(self, environment):
        command, extra = ruby(environment)
        return [*command, RUNNERS / "ruby_pg.rb"], extra


def ruby(environment):
    if tools.works("ruby", "-e", "require 'pg'"):
        return ["ruby"], dict(environment)
    home = tools.debian(["ruby3.1", "ruby-pg"])
    folders = ["lib/ruby/vendor_ruby", "lib/ruby/3.1.0"]
    folders += ["lib/x86_64-linux-gnu/ruby/vendor_ruby/3.1.0", "lib/x86_64-linux-gnu/ruby/3.1.0"]
    path = os.pathsep.join(str(home / "usr" / folder) for folder in folders)
    extra = {"RUBYLIB": path, "LD_LIBRARY_PATH": with_libpq(home, environment)}
    return [home / "usr/bin/ruby3.1", "--disable-gems"], {**environment, **extra}


def with_libpq(home, environment):
    """Libraries unpacked there, and the libpq of the server that is prepared, for what finds none."""
    return os.pathsep.join([tools.libraries(home), setup.output(environment["PG_CONFIG"], "--libdir")])


class Php(Driver):
    name, language, style = "PDO", "PHP", "question"
    package = "php8.2-pgsql"
    habit = "untyped, positional"
    without = {"binary": "results are asked for as text", "pipeline": ONE}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "emulated": TYPED | {"emulate": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }
    differs = {NUL: CUT}

    def prepare(self, environment):
        command, extra = php(environment)
        return [*command, RUNNERS / "php_pdo.php"], extra


def php(environment):
    if tools.works("php", "-r", "exit(extension_loaded('pdo_pgsql') ? 0 : 1);"):
        return ["php", "-d", "variables_order=EGPCS"], dict(environment)
    home = tools.debian(["php8.2-cli", "php8.2-pgsql"])
    (extensions,) = (home / "usr/lib/php").glob("20*")
    settings = [f"extension_dir={extensions}", "extension=pdo", "extension=pdo_pgsql", "variables_order=EGPCS"]
    options = [word for setting in settings for word in ("-d", setting)]
    return [home / "usr/bin/php8.2", "-n", *options], dict(environment, LD_LIBRARY_PATH=with_libpq(home, environment))


class Perl(Driver):
    name, language, style = "DBD::Pg", "Perl", "dollar"
    differs = {NUL: CUT}
    package = "libdbd-pg-perl"
    habit = "untyped, positional"
    without = {"binary": "results are asked for as text", "pipeline": ONE}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }

    def prepare(self, environment):
        if tools.works("perl", "-MDBD::Pg", "-MJSON::PP", "-e", "1"):
            return ["perl", RUNNERS / "perl_dbi.pl"], dict(environment)
        home = tools.debian(["libdbd-pg-perl", "libdbi-perl"], all_of_them=False)
        extra = {"PERL5LIB": str(home / tools.MULTIARCH / "perl5/5.36"), "LD_LIBRARY_PATH": with_libpq(home, environment)}
        if not tools.works("perl", "-MDBD::Pg", "-MJSON::PP", "-e", "1", env={**environment, **extra}):
            raise Hole("this system's perl is not the one that Debian's libdbd-pg-perl is built for")
        return ["perl", RUNNERS / "perl_dbi.pl"], {**environment, **extra}


class Libpq(Driver):
    name, language, style = "libpq", "C", "dollar"
    habit = "untyped, positional"
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
    differs = {NUL: CUT}

    def version(self, environment):
        return setup.output(environment["PG_CONFIG"], "--version").split()[-1]

    def prepare(self, environment):
        home = tools.debian(["libcjson-dev", "libcjson1"], all_of_them=False)
        program = setup.area() / "contract-libpq"
        include, libraries = (setup.output(environment["PG_CONFIG"], f"--{what}") for what in ("includedir", "libdir"))
        command = [*setup.compiler(), "-O1", "-Wall", RUNNERS / "libpq.c", "-o", program, f"-I{include}", f"-I{home}/usr/include"]
        tools.run(*command, f"-L{libraries}", f"-L{home / tools.MULTIARCH}", "-lpq", "-lcjson")
        return [program], dict(environment, LD_LIBRARY_PATH=with_libpq(home, environment))


class Jdbc(Driver):
    name, language, style = "pgjdbc", "Java", "question"
    differs = {f"simple/{NUL}": SIMPLE}
    package = "libpostgresql-jdbc-java"
    without = {"pipeline": "`executeBatch` drops results, and every function has one"}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "binary": TYPED | {"binary": True},
        "simple": TYPED | {"simple": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }

    def prepare(self, environment):
        program, path, extra = java(environment)
        classes = setup.area() / "contract-java"
        tools.run(program / "javac", "-cp", path, "-d", classes, RUNNERS / "java/Runner.java", env={**environment, **extra})
        command = [program / "java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}{os.pathsep}{path}", "Runner"]
        return command, {**environment, **extra}


def java(environment):
    """(folder of java and javac, class path of pgjdbc and gson, further variables)."""
    home = tools.debian(["libpostgresql-jdbc-java", "libgoogle-gson-java"], all_of_them=False)
    path = os.pathsep.join(str(home / "usr/share/java" / jar) for jar in ("postgresql.jar", "gson.jar"))
    if tools.works("javac", "--version"):
        return Path(shutil.which("javac")).parent, path, {}
    jdk = tools.debian(["openjdk-17-jdk-headless", "openjdk-17-jre-headless"])
    return jdk / "usr/lib/jvm/java-17-openjdk-amd64/bin", path, {"LD_LIBRARY_PATH": tools.libraries(jdk)}


class Pgx(Driver):
    name, language, style = "pgx", "Go", "dollar"
    differs = {f"simple/{NUL}": SIMPLE, f"pgbouncer/{NUL}": SIMPLE}
    package = "golang-github-jackc-pgx-v4-dev"
    without = {"binary": "always, but for the simple protocol"}
    modes = {
        "typed": TYPED,
        "untyped, positional": TEXT | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "simple": TYPED | {"simple": True},
        "pipeline": TYPED | {"pipeline": True},
        "pgbouncer": TYPED | {"through": "pgbouncer", "simple": True},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }

    def prepare(self, environment):
        parts = "pgx-v4 pgconn pgproto3-v2 pgtype pgio pgpassfile pgservicefile chunkreader-v2 puddle".split()
        jackc = [f"golang-github-jackc-{part}-dev" for part in parts]
        others = ["golang-golang-x-crypto-dev", "golang-golang-x-text-dev", "golang-github-gofrs-uuid-dev"]
        home = tools.debian(["golang-1.19-go", "golang-1.19-src", *jackc, *others], all_of_them=False)
        root = home / "usr/lib/go-1.19"
        go = {"GOROOT": str(root), "GOPATH": str(home / "usr/share/gocode"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
        go["GOCACHE"] = str(setup.area() / "contract-go-cache")
        program = setup.area() / "contract-pgx"
        tools.run(root / "bin/go", "build", "-o", program, RUNNERS / "go/main.go", env={**environment, **go})
        return [program], dict(environment)


class Rust(Driver):
    language, style = "Rust", "dollar"
    program = None

    def version(self, environment):
        lock = (RUNNERS / "rust/Cargo.lock").read_text()
        return re.search(rf'name = "{self.name}"\nversion = "(.*)"', lock)[1]

    def prepare(self, environment):
        target = setup.area() / "contract-rust"
        with setup.alone("contract-rust"):
            setup.say("building the Rust runners")
            manifest = RUNNERS / "rust/Cargo.toml"
            tools.run("cargo", "build", "--quiet", "--locked", "--manifest-path", manifest, "--target-dir", target, env=environment)
        return [target / "debug" / self.program], dict(environment)


class TokioPostgres(Rust):
    name, program, habit = "tokio-postgres", "tokio_postgres", "prepared"
    without = {"untyped": SERVER_TYPES, "binary": ALWAYS}
    modes = {
        "typed": TYPED,
        "positional": TYPED | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pipeline": TYPED | {"pipeline": True, "prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer"},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Sqlx(Rust):
    name, program = "sqlx", "sqlx"
    without = {"untyped": "a parameter has the type of the value that is bound", "binary": ALWAYS, "pipeline": ONE}
    modes = {
        "typed": TYPED,
        "positional": TYPED | POSITIONAL,
        "cast": CAST,
        "prepared": TYPED | {"prepare": True},
        "pgbouncer": TYPED | {"through": "pgbouncer", "wrap": True},
        "pgbouncer, prepared": TYPED | {"through": "new pgbouncer", "prepare": True},
    }


class Given(Driver):
    """A runner of the user's own."""

    name, language = "given", "given"
    modes = {"typed": TYPED, "untyped, positional": TEXT | POSITIONAL, "cast": CAST}

    def __init__(self, command, style):
        self.words, self.style = command.split(), style

    def version(self, environment):
        return ""

    def prepare(self, environment):
        return self.words, dict(environment)


DRIVERS = [
    *(Psycopg(), Asyncpg(), Pg8000()),
    *(NodePg(), Postgres()),
    *(TokioPostgres(), Sqlx()),
    *(Pgx(), Jdbc(), Ruby(), Php(), Perl(), Libpq()),
]

# Drivers that cannot be had where the tests run, each with the reason.
MISSING = {
    "Npgsql": ("C#", "not tried: Npgsql comes from NuGet alone, which the tests do not reach, and Debian has no .NET"),
}
