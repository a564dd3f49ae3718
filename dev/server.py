#!/usr/bin/env python3
"""Throw-away PostgreSQL clusters: the one place that knows how to start a server.

From a shell:

    python3 dev/server.py run -- CMD …       build and install the extension, start a cluster, run
                                             CMD with PGHOST, PGPORT, PGUSER, PGDATABASE set, delete
                                             the cluster; the exit code is CMD's
    python3 dev/server.py run --conf shared_preload_libraries=outbox --conf fsync=on -- CMD …
    python3 dev/server.py start DIR          one that stays; prints `export PGHOST=…` lines
    python3 dev/server.py stop DIR           stop it, keep its data (--delete: delete it too)

From Python (what programs in tests/cluster do; pytest finds this module by itself):

    from server import Server

    with Server(conf={"max_prepared_transactions": 10}) as server:
        server.createdb("shop", extension="outbox")
        server.psql("SELECT 1", dbname="shop")          # text; SqlError on an SQL error
        with server.connect("shop", autocommit=True) as connection:   # psycopg
            connection.execute("SELECT 1").fetchone()
        server.restart(mode="immediate")                # also stop(mode), start(), reload(**conf)
        server.kill9()                                  # what a crash of the machine leaves
        server.start()
        standby = server.standby()                      # streaming, running, a Server too
        standby.catch_up(); standby.promote()
        subprocess.run(["pgbench", "shop"], env=server.env)
        server.bin("pg_dump"), server.log(), server.folder("tablespace"), server.as_user("initdb", …)

A cluster listens on a socket of its own in a short temporary folder; with `listen_addresses` in
`conf` also on a free TCP port. The superuser is `postgres`, everybody is trusted, databases are
UTF8 with locale C, the time zone is UTC and fsync is off unless `conf` says otherwise. Another
major version: `Server(pg=17)`; the extension must be installed there (`build.install(17)`).
However the program ends, its clusters are stopped and deleted; should it be killed with SIGKILL,
the next program that starts one clears up.
"""

import argparse
import atexit
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import setup

PATIENCE = 120  # seconds until a server that neither comes up nor goes down is an error
DEFAULTS = {
    "fsync": False,
    "listen_addresses": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a ",
}
READY = (["ready"], ["standby"])
LIBPQ = """PGAPPNAME PGCLIENTENCODING PGCONNECT_TIMEOUT PGDATA PGDATABASE PGDATESTYLE PGHOST PGHOSTADDR
PGOPTIONS PGPASSFILE PGPASSWORD PGPORT PGREQUIREAUTH PGSERVICE PGSERVICEFILE PGSSLMODE
PGTARGETSESSIONATTRS PGTZ PGUSER""".split()

throw_away = []  # the clusters of this process, in the order they were made


class ServerError(Exception):
    """A server that does not start or stop; the message ends with its log."""


class SqlError(Exception):
    """What psql printed when a statement failed."""


class Server:
    def __init__(self, pg=None, conf=None, directory=None, backup_of=None, pg_config=None):
        """A cluster, not yet running. `directory`: one that stays there, made if it is not there yet. `pg_config`: of another
        server than the one that is prepared, of the same major version."""
        self.environment = setup.prepare(pg)
        self.environment.update({"PG_CONFIG": pg_config} if pg_config else {})
        self.pg = self.environment["PG"]
        self.conf = {**DEFAULTS, **(conf or {})}
        self.bindir = setup.output(self.environment["PG_CONFIG"], "--bindir")
        # a standby of an embedded server must not find the system's libpq, which may be older
        self.libraries = setup.output(self.environment["PG_CONFIG"], "--libdir")
        self.process = None
        self.crashed = False
        self.made_by = os.getpid()
        self.home = Path(directory).resolve() if directory else new_home(self)
        self.data = self.home / "data"
        self.logfile = self.home / "log"
        self.socket = socket_of(self.home)
        self.port = int(status(self.data)[3]) if self.is_running() else 5432
        if not (self.data / "PG_VERSION").exists():
            with self.or_closed():
                self.home.mkdir(parents=True, exist_ok=True)
                self.folder("data", mode=0o700)
                if backup_of:
                    self.copy(backup_of)
                else:
                    self.initdb()

    def __enter__(self):
        with self.or_closed():
            return self.start()

    def __exit__(self, *_):
        self.close()

    @contextlib.contextmanager
    def or_closed(self):
        try:
            yield
        except BaseException:
            self.close()
            raise

    # -- making ------------------------------------------------------------------------------

    def initdb(self):
        options = "--auth=trust --username=postgres --encoding=UTF8 --locale=C --no-sync"
        self.as_user("initdb", *options.split(), "-D", self.data)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write("\ninclude 'dev.conf'\n")

    def copy(self, primary):
        options = "--wal-method=stream --checkpoint=fast --no-sync --write-recovery-conf"
        primary.as_user("pg_basebackup", *options.split(), "-D", self.data)

    def standby(self, conf=None):
        """A streaming standby of this running server, itself running."""
        standby = Server(self.pg, {**self.conf, **(conf or {})}, backup_of=self)
        return standby.__enter__()

    def folder(self, name, mode=0o755):
        """An empty folder beside the data, where the server may write: a tablespace, an archive."""
        folder = self.home / name
        folder.mkdir(mode=mode)
        give_to_server_user(folder)
        return folder

    # -- running -----------------------------------------------------------------------------

    def start(self):
        if self.is_running():
            return self
        if self.socket is None:
            self.socket = new_socket(self.home)
        self.port = free_port() if self.conf["listen_addresses"] else 5432
        self.write_conf()
        with open(self.logfile, "ab") as log:
            self.process = subprocess.Popen(
                [self.bin("postgres"), "-D", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=dict(self.env, LC_ALL="C", LD_LIBRARY_PATH=self.libraries),
                start_new_session=True,  # Ctrl-C is for us; we stop the server in our own order
                **setup.as_server_user(),
            )
        wait(lambda: self.is_ready() or self.process.poll() is not None, self, "start")
        if self.process.poll() is not None:
            self.process = None
            raise ServerError(f"the server did not start\n{self.log()}")
        self.crashed = False
        return self

    def stop(self, mode="fast"):
        """Modes as in pg_ctl: smart, fast, immediate."""
        pid = self.pid()
        if pid is not None:
            signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signals[mode])
            wait(lambda: self.is_gone(pid), self, "stop")
        self.process = None

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def kill9(self):
        """End the postmaster and all its children at once, as a crash would. `start()` recovers."""
        pid = self.pid()
        os.kill(pid, signal.SIGSTOP)  # or it would start new children while we collect them
        victims = [pid, *children(pid)]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        wait(lambda: self.is_gone(pid) and not any(map(alive, victims)), self, "die")
        self.process = None
        self.crashed = True

    def reload(self, **conf):
        """Change settings (None: back to the default) and have the server read them."""
        self.conf.update(conf)
        self.write_conf()
        os.kill(self.pid(), signal.SIGHUP)

    def promote(self):
        if self.psql("SELECT pg_promote()") != "t":
            raise ServerError(f"not promoted\n{self.log()}")

    def catch_up(self):
        """Wait until this standby has replayed all that its primary has written by now."""
        primary = dict(p.split("=", 1) for p in shlex.split(self.psql("SHOW primary_conninfo")))
        lsn = self.psql("SELECT pg_current_wal_lsn()", host=primary["host"], port=primary["port"])
        sql = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'"
        wait(lambda: self.psql(sql) == "t", self, "catch up")

    def close(self):
        """Stop it; delete it unless it was made to stay."""
        if self.made_by != os.getpid():
            return  # a forked child must not end its parent's servers
        if self not in throw_away:
            self.stop()
            remove_socket(self.home)
            self.socket = None
            return
        if self.crashed:
            with contextlib.suppress(ServerError):
                self.start()  # only a server removes the shared memory its predecessor left
        self.stop("immediate")
        throw_away.remove(self)
        remove_socket(self.home)
        shutil.rmtree(self.home)

    # -- asking ------------------------------------------------------------------------------

    @property
    def env(self):
        """A complete environment in which libpq programs reach this server."""
        kept = {k: v for k, v in self.environment.items() if k not in LIBPQ}
        here = {"PGHOST": self.socket or "", "PGPORT": str(self.port)}
        return {**kept, **here, "PGUSER": "postgres", "PGDATABASE": "postgres"}

    def bin(self, name):
        return f"{self.bindir}/{name}"

    def psql(self, sql, dbname="postgres", host=None, port=None):
        """Run a script; returns the rows as psql's unaligned text, without the last line feed."""
        command = [self.bin("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", dbname]
        command += ["-h", host or self.socket, "-p", str(port or self.port)]
        done = subprocess.run(command, input=sql, capture_output=True, text=True, env=self.env)
        if done.returncode != 0:
            raise SqlError(done.stderr.strip())
        return done.stdout[:-1]

    def connect(self, dbname="postgres", **options):
        sys.path.append(self.environment["PYTHONPATH"].split(os.pathsep)[0])
        import psycopg

        reach = {"host": self.socket, "port": self.port, "user": "postgres", "dbname": dbname}
        return psycopg.connect(**{**reach, **options})

    def createdb(self, name, extension=None):
        self.psql(f'CREATE DATABASE "{name}"')
        if extension:
            self.psql(f'CREATE EXTENSION "{extension}"', dbname=name)

    def as_user(self, program, *arguments):
        """Run a program of this PostgreSQL as the user the server runs as; returns its output."""
        command = [self.bin(program), *map(str, arguments)]
        environment = dict(self.env, LC_ALL="C")
        user = setup.as_server_user()
        done = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True, **user
        )
        if done.returncode != 0:
            raise ServerError(f"{program} failed\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self):
        return self.logfile.read_text(errors="replace") if self.logfile.exists() else ""

    def pid(self):
        """The postmaster's process id, or None when it does not run."""
        if self.process is not None and self.process.poll() is None:
            return self.process.pid
        return postmaster(self.data)

    def is_running(self):
        return self.pid() is not None

    def is_ready(self):
        lines = status(self.data)  # what a crash left names another process
        return len(lines) > 7 and int(lines[0]) == self.pid() and lines[7].split() in READY

    # -- within ------------------------------------------------------------------------------

    def is_gone(self, pid):
        if self.process is not None and self.process.pid == pid:
            return self.process.poll() is not None
        return not alive(pid)

    def write_conf(self):
        conf = {**self.conf, "unix_socket_directories": str(self.socket), "port": self.port}
        lines = [f"{k} = {quoted(v)}\n" for k, v in conf.items() if v is not None]
        (self.data / "dev.conf").write_text("".join(lines))
        give_to_server_user(self.data / "dev.conf")


def quoted(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"


def give_to_server_user(path):
    user = setup.as_server_user()
    if user:
        os.chown(path, user["user"], user["group"])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(condition, server, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"the server did not {what} in {PATIENCE} s\n{server.log()}")
        time.sleep(0.01)


# -- processes -------------------------------------------------------------------------------


def status(data):
    """Lines of postmaster.pid: pid, data, start, port, socket, address, shared memory, state."""
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def postmaster(data):
    """Process id of the server running on `data`. A file from before a reboot names a stranger."""
    lines = status(data)
    if not lines or not alive(int(lines[0])):
        return None
    workplace = f"/proc/{lines[0]}/cwd"
    if os.path.exists(workplace) and not os.path.samefile(workplace, data):
        return None
    return int(lines[0])


def processes():
    """pid: (parent, state) of all processes."""
    if not os.path.exists("/proc/self/stat"):
        listing = setup.output("ps", "-A", "-o", "pid=,ppid=,state=").splitlines()
        return {int(pid): (int(parent), state) for pid, parent, state in map(str.split, listing)}
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2]
            state, parent = fields.split()[:2]
            found[int(entry)] = int(parent), state
    return found


def children(pid):
    return [child for child, (parent, _) in processes().items() if parent == pid]


def alive(pid):
    """A zombie is dead: not every container has somebody who buries it."""
    _, state = processes().get(pid, (0, "Z"))
    return not state.startswith("Z")


# -- folders ---------------------------------------------------------------------------------


def new_home(server):
    """A folder for a throw-away cluster, locked for as long as this process lives."""
    clusters = setup.area() / "clusters"
    with setup.alone("clusters"):
        clusters.mkdir(exist_ok=True)
        clear_abandoned(clusters)
        home = Path(tempfile.mkdtemp(prefix=f"pg{server.pg}-", dir=clusters))
        home.chmod(0o755)
        server.owner = lock(home)
    if not throw_away:
        end_in_order()
    throw_away.append(server)
    return home


def lock(home):
    """Held by the process that owns the cluster; None while another one holds it."""
    file = open(home / "owner", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        file.close()
        return None


def clear_abandoned(clusters):
    """Clusters whose process was killed before it could delete them."""
    for home in clusters.iterdir():
        if lock(home):
            pid = postmaster(home / "data")
            if pid:
                os.kill(pid, signal.SIGQUIT)
                while alive(pid):
                    time.sleep(0.01)
            remove_socket(home)
            shutil.rmtree(home)


def new_socket(home):
    """A folder with a path short enough for a socket; a link beside the data remembers it."""
    folder = tempfile.mkdtemp(prefix="pg-", dir=setup.temporary_directory())
    give_to_server_user(folder)
    with contextlib.suppress(FileNotFoundError):
        (home / "socket").unlink()
    (home / "socket").symlink_to(folder)
    return folder


def socket_of(home):
    link = home / "socket"
    return os.readlink(link) if link.exists() else None


def remove_socket(home):
    if (home / "socket").is_symlink():
        shutil.rmtree(os.readlink(home / "socket"), ignore_errors=True)
        (home / "socket").unlink()


def end_in_order():
    """However this process ends, its servers end with it (SIGKILL apart)."""
    atexit.register(close_all)
    for number in (signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda number, _: sys.exit(128 + number))


def close_all():
    for server in reversed(throw_away[:]):
        server.close()


# -- from a shell ----------------------------------------------------------------------------


def setting(text):
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not key=value")
    return key, value


def command_run(arguments):
    if not arguments.no_install:
        import build

        build.install(arguments.pg)
    with Server(arguments.pg, dict(arguments.conf)) as server:
        return subprocess.call(arguments.command, env=server.env)


def command_start(arguments):
    if not arguments.no_install:
        import build

        build.install(arguments.pg)
    server = Server(arguments.pg, dict(arguments.conf), directory=arguments.directory).start()
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        print(f"export {name}={shlex.quote(server.env[name])}")


def command_stop(arguments):
    home = Path(arguments.directory)
    if not (home / "data" / "PG_VERSION").exists():
        raise setup.Missing(f"{home} is not a cluster made by `start`")
    Server((home / "data" / "PG_VERSION").read_text().strip(), directory=home).close()
    if arguments.delete:
        shutil.rmtree(home)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg", help="major version of PostgreSQL (default: $PG, or 15)")
    verbs = parser.add_subparsers(required=True)
    for verb, action in (("run", command_run), ("start", command_start), ("stop", command_stop)):
        subparser = verbs.add_parser(verb)
        subparser.set_defaults(action=action)
        if verb != "run":
            subparser.add_argument("directory", metavar="DIR")
        if verb != "stop":
            subparser.add_argument("--conf", type=setting, action="append", default=[])
            subparser.add_argument("--no-install", action="store_true")
        if verb == "run":
            subparser.add_argument("command", nargs="+")
        if verb == "stop":
            subparser.add_argument("--delete", action="store_true")
    arguments = parser.parse_args()
    return arguments.action(arguments)


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
