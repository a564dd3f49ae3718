#!/usr/bin/env python3
"""See the outbox work, from nothing to balanced books.

    make demo                         prepare, build, start a throw-away cluster, do the main job
    python3 demo/run.py --crash 10    torture: the whole cluster is killed with SIGKILL ten times
    python3 demo/run.py --end         stop and delete what an earlier demo left running

The main job: order services (shop.py) write business rows and append messages in the same
transactions, some of them rolled back. Workers in three languages (../clients) claim the messages
and deliver them over HTTP to a consumer (receiver.py), which makes out invoices. Meanwhile one
worker is killed while it has undelivered messages, another one after its messages took effect and
before it could say so, and one message always fails. At the end the books (books.py) must balance.

On a terminal the cluster stays, to look around in; otherwise, or with --stop, it is deleted.
"""

import argparse
import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parent
CLIENTS = DEMO.parent / "clients"
sys.path.insert(0, str(DEMO.parent / "dev"))

import events
import setup
from books import Books
from journal import Reader
from process import Failed, Process
from server import Server, ServerError

DATABASE = "shop"
LEASE_SECONDS = 5
SHOPS = 3
MESSAGES = 20_000
BACKLOG = 1.5  # seconds for which the shops are alone, so that the workers begin with full batches
STUCK = 60  # seconds in which nothing happens until we say so
UNSETTLED = "SELECT count(*) FROM outbox.message WHERE state IN ('ready', 'leased', 'waiting')"
LEASED = "SELECT count(*) FROM outbox.message WHERE state = 'leased' AND lease_owner = %s"
CONF = {
    "shared_preload_libraries": "outbox",
    "fsync": True,
    "outbox.max_attempts": 5,
    "outbox.backoff_seconds": 1,
    "outbox.backoff_max_seconds": 2,
}
HOLDS = ["python-1:before:2", "rust-1:after:2"]  # the workers to be killed, see receiver.py
# A message may be on its way in several of the crashes.
TORTURE_CONF = {"outbox.max_attempts": 20, "outbox.backoff_max_seconds": 1}
BALANCED = """\
The books balance: no message was lost, invented, changed, early or invoiced twice,
none had two leases at a time, and none overtook an older one of its key."""


def say(text=""):
    print(text, flush=True)


class Demo:
    def __init__(self, options):
        self.options = options
        self.home = setup.area() / "demo"
        self.server = None
        self.processes = []
        self.workers = {}  # owner: command
        self.epitaphs = {}  # owner: how it ended

    # -- preparing -----------------------------------------------------------------------------

    def end_earlier(self):
        """Stops and deletes what an earlier run left; returns whether there was anything."""
        cluster = self.home / "cluster"
        left = (cluster / "data" / "PG_VERSION").exists()
        if left:
            Server((cluster / "data" / "PG_VERSION").read_text().strip(), directory=cluster).close()
        shutil.rmtree(self.home, ignore_errors=True)
        return left

    def prepare(self):
        step("tools", "what is missing is fetched into the build area")
        environment = setup.prepare()
        step("extension", f"for PostgreSQL {environment['PG']}; the first build takes a minute or two")
        quietly(sys.executable, DEMO.parent / "dev" / "build.py", env=environment)
        step("workers", "in Python, Rust and, where there is npm, Node")
        self.prepare_workers(environment)
        self.events, what = events.prepare(setup.area())
        step("messages", what)
        for folder in ("journals", "logs"):
            (self.home / folder).mkdir(parents=True)
        conf = {**CONF, **(TORTURE_CONF if self.options.crash else {})}
        self.server = Server(conf=conf, directory=self.home / "cluster")
        self.server.start()
        self.server.createdb(DATABASE, extension="outbox")
        self.server.psql((DEMO / "shop.sql").read_text(), dbname=DATABASE)
        step("cluster", f"PostgreSQL {environment['PG']} with shared_preload_libraries = outbox, fsync on")

    def prepare_workers(self, environment):
        python = [sys.executable, CLIENTS / "python" / "worker.py"]
        rust = [rust_worker(environment)]
        self.workers = {"python-1": python, "python-2": python, "rust-1": rust}
        node = node_worker(environment)
        if node:
            self.workers["node-1"] = node

    # -- the processes -------------------------------------------------------------------------

    def start(self, name, *command):
        environment = dict(self.server.env, PGDATABASE=DATABASE)
        process = Process(name, command, environment, self.home / "logs")
        self.processes.append(process)
        return process

    def start_consumer(self):
        holds = [] if self.options.crash else [f"--hold={hold}" for hold in HOLDS]
        consumer = self.start_ours("consumer", "receiver.py", *holds)
        while not consumer.last_line().startswith("http"):
            consumer.check()
            time.sleep(0.02)
        self.url = consumer.last_line()

    def start_shop(self, number):
        options = [f"--name=shop-{number}", *(["--unreadable"] if number == 1 else [])]
        if not self.options.crash:  # else until they are stopped
            options += [f"--messages={self.options.messages // SHOPS}"]
        return self.start_ours(f"shop-{number}", "shop.py", *options)

    def start_ours(self, name, program, *options):
        journal = self.home / "journals" / name
        common = [f"--journal={journal}", f"--events={self.events}"]
        return self.start(name, sys.executable, DEMO / program, *common, *options)

    def start_worker(self, owner, command):
        options = [f"--owner={owner}", "--topic=orders", f"--url={self.url}"]
        options += [f"--lease-seconds={LEASE_SECONDS}", "--wait-seconds=1"]
        return self.start(owner, *command, *options)

    def find(self, name):
        return next(process for process in self.processes if process.name == name)

    # -- the main job --------------------------------------------------------------------------

    def perform(self):
        self.books = Books(LEASE_SECONDS)
        self.start_consumer()
        self.shops = [self.start_shop(number) for number in range(1, SHOPS + 1)]
        time.sleep(BACKLOG)
        for owner, command in self.workers.items():
            self.start_worker(owner, command)
        journals = self.home / "journals"
        self.shop_journals = [Reader(journals / shop.name) for shop in self.shops]
        self.consumer_journal = Reader(journals / "consumer")
        self.progress = Progress(self.books)
        crashes = self.crashes()
        while not self.is_over():
            self.read_journals()
            self.progress.show()
            self.kill_held_workers()
            next(crashes)
            for process in self.processes:
                process.check()
            if self.progress.is_stuck():
                say(f"nothing has happened for {STUCK} s")
                break
            time.sleep(0.1)
        for owner in self.workers:
            self.find(owner).ask_to_stop()
        for owner in self.workers:
            self.find(owner).wait()
            self.epitaphs[owner] = self.find(owner).last_line()
        self.read_journals()

    def read_journals(self):
        for journal in self.shop_journals:
            for record in journal.new():
                self.books.from_shop(record)
        for record in self.consumer_journal.new():
            self.books.from_consumer(record)

    def is_over(self):
        if not all(shop.has_ended() for shop in self.shops) or self.books.waiting:
            return False
        with self.server.connect(DATABASE) as connection:
            return connection.execute(UNSETTLED).fetchone() == (0,)

    def kill_held_workers(self):
        for owner in self.books.held.keys() & self.workers.keys():
            with self.server.connect(DATABASE) as connection:
                (leased,) = connection.execute(LEASED, [owner]).fetchone()
            worker = self.find(owner)
            worker.kill()
            self.processes.remove(worker)
            command = self.workers.pop(owner)
            heir = f"{owner.split('-')[0]}-{int(owner.split('-')[1]) + 2}"
            self.workers[heir] = command
            self.start_worker(heir, command)
            when = dict(hold.split(":")[:2] for hold in HOLDS)[owner]
            effect = "all in effect and none completed" if when == "after" else "none delivered yet"
            self.epitaphs[owner] = f"killed with SIGKILL while it held {leased} leases, {effect}"
            self.progress.event(f"{owner} {self.epitaphs[owner]}; {heir} takes its place")
            if not leased:
                raise Failed(f"{owner} was to be killed in the middle of its leases, but held none")

    def crashes(self):
        """A step of the torture at each `next`: kill, restart, let it work a while, in the end stop."""
        chance = random.Random()
        for number in range(1, self.options.crash + 1):
            yield from pause(chance.uniform(2, 5))
            started = time.monotonic()
            self.server.kill9()
            self.server.start()
            took = time.monotonic() - started
            self.progress.event(f"crash {number}: cluster killed with SIGKILL, back after {took:.1f} s")
        if self.options.crash:
            yield from pause(3)
            for shop in self.shops:
                shop.ask_to_stop()
        while True:
            yield

    # -- the end -------------------------------------------------------------------------------

    def report(self):
        """Prints the books; returns the exit code."""
        with self.server.connect(DATABASE) as connection:
            problems = self.books.balance(connection)
        if not self.options.crash:
            spared = {hold.split(":")[0] for hold in HOLDS} - self.books.held.keys()
            problems += [f"{owner} was to be killed, but never came to that point" for owner in spared]
        say()
        for line in self.books.table():
            say(line)
        say()
        for owner, epitaph in self.epitaphs.items():
            say(f"{owner:>12}  {epitaph}")
        if self.options.crash:
            happened, unhappened = (self.books.found_out[fate] for fate in ("committed", "rolled back"))
            say(
                f"{'crashes':>12}  {self.options.crash}; they cut {happened + unhappened} COMMITs short, "
                f"{happened} of which had happened"
            )
        say()
        for problem in problems:
            say(f"IMBALANCE: {problem}")
        say("The books do not balance." if problems else BALANCED)
        return 1 if problems else 0

    def invite(self):
        """How to look around in what is left running."""
        psql = "psql" if shutil.which("psql") else self.server.bin("psql")
        say(f"""
The cluster is still running. Look around:

    {psql} -h {self.server.socket} -p {self.server.port} -U postgres {DATABASE}

    SELECT state, count(*) FROM outbox.message GROUP BY 1;
    SELECT id, event_type, attempts, last_error FROM outbox.message WHERE state = 'dead';
    SELECT lease_owner, count(*), max(attempts) FROM outbox.message GROUP BY 1 ORDER BY 2 DESC;
    SELECT outbox.append('orders', 'evt.shop.hello.v1', '{{"hello": "world"}}');
    SELECT id, type, payload, attempts, leased_until FROM outbox.claim('me', 'orders');
    \\df+ outbox.*

Stop and delete it: make demo-stop""")

    def end_processes(self):
        for process in self.processes:
            process.kill()
        self.processes.clear()


class Progress:
    """One line a second, made for a terminal and for a log."""

    HEADER = ("time", "appended", "rolled back", "delivered", "redelivered", "to do", "delivered/s")

    def __init__(self, books):
        self.books = books
        self.start = self.shown = self.moved = time.monotonic()
        self.before = 0
        say()
        say("".join(f"{title:>13}" for title in self.HEADER))

    def show(self):
        now = time.monotonic()
        if now - self.shown < 1:
            return
        books, delivered = self.books, len(self.books.accepted)
        rate = (delivered - self.before) / (now - self.shown)
        numbers = [len(books.appended), len(books.rolled_back), delivered, books.redelivered, books.waiting, rate]
        say(f"{now - self.start:>11.0f} s" + "".join(f"{number:>13,.0f}" for number in numbers))
        if delivered != self.before:
            self.moved = now
        self.shown, self.before = now, delivered

    def event(self, text):
        self.moved = time.monotonic()
        say(f"{self.moved - self.start:>11.0f} s  {text}")

    def is_stuck(self):
        return time.monotonic() - self.moved > STUCK


def pause(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


def step(name, text):
    say(f"{name:>12}  {text}")


def quietly(*command, **options):
    """Runs a program whose output is of interest only if it fails."""
    options.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    done = subprocess.run(list(map(str, command)), **options)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(map(str, command))} failed:\n{done.stdout}")


def rust_worker(environment):
    target = setup.area() / "clients" / "rust"
    command = ["cargo", "build", "--release", "--locked", "--target-dir", target]
    quietly(*command, cwd=CLIENTS / "rust", env=environment)
    return target / "release" / "outbox-worker"


def node_worker(environment):
    """The command of the Node worker, or None where Node or its packages are not to be had."""
    node, npm = (shutil.which(name, path=environment["PATH"]) for name in ("node", "npm"))
    if not node or not npm or int(setup.output(node, "--version")[1:].split(".")[0]) < 18:
        return None
    folder = setup.area() / "clients" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "package-lock.json"
    wanted = (CLIENTS / "node" / lock.name).read_bytes()
    installed = folder / "node_modules" / ".package-lock.json"
    if not installed.exists() or lock.read_bytes() != wanted:
        for name in (lock.name, "package.json"):
            shutil.copy(CLIENTS / "node" / name, folder)
        command = [npm, "ci", "--silent", "--no-audit", "--no-fund"]
        if subprocess.run(command, cwd=folder, env=environment).returncode != 0:
            return None
    shutil.copy(CLIENTS / "node" / "worker.mjs", folder)  # Node looks for packages beside the program
    return [node, folder / "worker.mjs"]


def wants_to_stay(options):
    if options.keep or options.stop:
        return options.keep
    return sys.stdout.isatty() and os.environ.get("CI") != "true"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"default {MESSAGES}")
    parser.add_argument("--crash", type=int, default=0, metavar="N", help="kill the cluster N times")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    parser.add_argument("--stop", action="store_true", help="stop and delete it at the end")
    parser.add_argument("--end", action="store_true", help="only end what an earlier demo left")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with setup.alone("demo"):  # a second one waits for the first
        return run(options)


def run(options):
    demo = Demo(options)
    left = demo.end_earlier()
    if options.end:
        say("stopped and deleted" if left else "no demo is running")
        return 0
    stays = False
    try:
        demo.prepare()
        demo.perform()
        code = demo.report()
        stays = wants_to_stay(options)
    except (Failed, ServerError) as failed:
        say(f"error: {failed}")
        code = 1
    except KeyboardInterrupt:
        say("\ninterrupted; ending everything")
        code = 130
    finally:
        demo.end_processes()
        if not stays:
            with contextlib.suppress(KeyboardInterrupt):
                demo.end_earlier()
    if stays:
        demo.invite()
    elif code == 0:
        say("The cluster is deleted; python3 demo/run.py --keep leaves it running to look around.")
    return code


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
