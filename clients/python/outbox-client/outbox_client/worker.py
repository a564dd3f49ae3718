"""The worker: claims, delivers several at a time, answers."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from outbox_client.messages import Message

# Answers first, then the claim, in one statement: the claim depends on `said`, so the answers come before it.
ANSWER = """WITH answered AS MATERIALIZED (
        SELECT token, completed FROM outbox.complete_batch(%(complete)s::uuid[])
        UNION ALL
        SELECT token, outbox.fail(token, error) IS NOT NULL FROM unnest(%(fail)s::uuid[], %(errors)s::text[]) AS f (token, error)
        UNION ALL
        SELECT token, outbox.release(token) FROM unnest(%(release)s::uuid[]) AS r (token)),
    said AS MATERIALIZED (
        SELECT count(*)::integer AS answers, (count(*) FILTER (WHERE NOT completed))::integer AS stale FROM answered) """
CLAIM = """SELECT stale, id, token, topic, type, payload::text, key, headers, attempts
    FROM said LEFT JOIN LATERAL outbox.claim(owner => %(owner)s, topic => %(topic)s, batch_size => %(room)s + 0 * said.answers,
        lease_seconds => %(lease)s, wait_seconds => %(wait)s) AS message ON true"""
EXTEND = "SELECT token FROM unnest(%s::uuid[]) AS token WHERE outbox.extend(token, %s) IS NULL"
LOOK = 0.25  # seconds between looks while a delivery runs and another could
CALM, LONGEST = 0.1, 10.0  # seconds; of the backoff between connections
# The connection or the server is gone, going or no primary any more (25006), rather than a statement wrong.
PASSING = "25006", "08", "40", "53", "57"


class Hooks:
    """Told what the worker does, for metrics and tracing."""

    def claimed(self, messages: int) -> None: ...

    def delivering(self, message: Message) -> contextlib.AbstractContextManager[Any]:
        """Entered in the thread of the delivery and left at its end: the place for a span."""
        return contextlib.nullcontext()

    def ended(self, message: Message, error: BaseException | None, seconds: float) -> None: ...

    def reconnecting(self, error: Exception) -> None: ...


@dataclass
class Counts:
    """What became of the messages. A stale answer changed nothing: the lease was no longer the current one."""

    delivered: int = 0
    failed: int = 0
    released: int = 0
    stale: int = 0


def run_worker(
    conninfo: str, handler: Callable[[Message], Any], *, owner: str, topic: str | None = None, concurrency: int = 10,
    lease_seconds: int = 60, wait_seconds: int = 5, stop: threading.Event | None = None, hooks: Hooks | None = None,
) -> Counts:  # fmt: skip
    """Works until `stop` is set: finishes what runs, releases the rest. Reconnects for as long as that takes; raises an
    error that a new connection would not cure, once the deliveries that run have ended."""
    worker = Worker(conninfo, handler, owner, topic, concurrency, lease_seconds, wait_seconds, hooks or Hooks())
    return worker.run(stop or threading.Event(), drain=False)


def drain_once(
    conninfo: str, handler: Callable[[Message], Any], *, owner: str, topic: str | None = None, concurrency: int = 10,
    lease_seconds: int = 60, hooks: Hooks | None = None,
) -> Counts:  # fmt: skip
    """Works until nothing is left to claim, then returns: for schedulers and serverless."""
    worker = Worker(conninfo, handler, owner, topic, concurrency, lease_seconds, 0, hooks or Hooks())
    return worker.run(threading.Event(), drain=True)


@dataclass
class Answers:
    complete: list[UUID] = field(default_factory=list)
    fail: list[UUID] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    release: list[UUID] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.complete or self.fail or self.release)


def lane(message: Message) -> tuple[str, str] | None:
    """One delivery at a time; None: any number."""
    return (message.topic, message.key) if message.key is not None else None


class Worker:
    def __init__(self, conninfo, handler, owner, topic, concurrency, lease_seconds, wait_seconds, hooks):
        self.conninfo, self.handler, self.hooks = conninfo, handler, hooks
        self.asked = {"owner": owner, "topic": topic, "lease": lease_seconds}
        self.concurrency, self.lease, self.wait = concurrency, lease_seconds, wait_seconds
        self.connection: psycopg.Connection | None = None
        self.queue: list[Message] = []
        self.running: dict[Future, tuple[Message, float]] = {}
        self.answers, self.counts = Answers(), Counts()
        self.extended = time.monotonic()
        self.sleeping = False

    def run(self, stop: threading.Event, drain: bool) -> Counts:
        ended = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(stop, ended), daemon=True)
        watcher.start()
        calm = CALM
        with ThreadPoolExecutor(self.concurrency, "outbox") as self.pool:
            try:
                while True:
                    if stop.is_set():
                        self.answers.release += [message.token for message in self.queue]
                        self.queue.clear()
                    try:
                        if self.turn(stop, drain):
                            return self.counts
                        calm = CALM
                    except psycopg.Error as error:
                        if stop.is_set() and error.sqlstate == "57014":
                            continue  # the claim that slept
                        if not is_passing(error):
                            raise
                        self.hooks.reconnecting(error)
                        self.disconnect()
                        stop.wait(calm * random.uniform(0.5, 1.5)) if not stop.is_set() else time.sleep(calm)
                        calm = min(2 * calm, LONGEST)
                        # Without a database a stopped worker leaves its leases to run out.
                        if stop.is_set() and not self.running and calm == LONGEST:
                            raise
            finally:
                ended.set()
                self.disconnect()

    def watch(self, stop: threading.Event, ended: threading.Event) -> None:
        """A stop cancels the claim that sleeps, and with it what that would lease."""
        stop.wait()
        while not ended.wait(0.1):
            connection = self.connection
            if self.sleeping and connection:
                with contextlib.suppress(psycopg.Error):
                    connection.cancel()

    def turn(self, stop: threading.Event, drain: bool) -> bool:
        """One exchange with the server, or one event while deliveries run. True: there is nothing more to do."""
        self.collect()
        self.extend()
        room = 0 if stop.is_set() else max(0, self.concurrency - len(self.running) - len(self.queue))
        got = self.exchange(room, 0) if room or self.answers else 0
        self.start()
        if not self.running:
            if stop.is_set() or drain:
                return got == 0
            self.sleeping = True
            try:
                if not stop.is_set():
                    self.exchange(room, self.wait)
            finally:
                self.sleeping = False
            return False
        until = max(0.0, self.lease / 3 - (time.monotonic() - self.extended))
        wait(self.running, min(until, LOOK), FIRST_COMPLETED)
        return False

    def exchange(self, room: int, seconds: int) -> int:
        """Gives the answers and claims `room` messages in one statement; answers that failed to go stay."""
        values = {**self.asked, **vars(self.answers), "room": min(room, 500), "wait": seconds}
        sql = ANSWER + (CLAIM if room else "SELECT stale FROM said")
        rows = self.connected().execute(sql, values).fetchall()
        given, self.answers = self.answers, Answers()
        self.counts.stale += rows[0][0]
        self.counts.delivered += len(given.complete)
        self.counts.failed += len(given.fail)
        self.counts.released += len(given.release)
        messages = [Message(*row[1:]) for row in rows if room and row[1]]
        if messages and not self.running and not self.queue:
            self.extended = time.monotonic()
        self.queue += messages
        if room:
            self.hooks.claimed(len(messages))
        return len(messages)

    def extend(self) -> None:
        """At a third of the lease, all that is held is extended; what is stale and has not begun is dropped."""
        held = [message.token for message, _ in self.running.values()] + [message.token for message in self.queue]
        if not held or time.monotonic() - self.extended < self.lease / 3:
            return
        stale = {token for (token,) in self.connected().execute(EXTEND, [held, self.lease])}
        self.queue = [message for message in self.queue if message.token not in stale]
        self.extended = time.monotonic()

    def start(self) -> None:
        """Starts what may: of one key one delivery at a time, in order."""
        busy = {lane(message) for message, _ in self.running.values()} - {None}
        waiting = []
        for message in self.queue:
            if lane(message) in busy:
                waiting.append(message)
                continue
            if lane(message):
                busy.add(lane(message))
            self.running[self.pool.submit(self.deliver, message)] = message, time.monotonic()
        self.queue = waiting

    def deliver(self, message: Message) -> None:
        with self.hooks.delivering(message):
            self.handler(message)

    def collect(self) -> None:
        for future in [future for future in self.running if future.done()]:
            message, since = self.running.pop(future)
            error = future.exception()
            self.hooks.ended(message, error, time.monotonic() - since)
            if error is None:
                self.answers.complete.append(message.token)
                continue
            self.answers.fail.append(message.token)
            self.answers.errors.append((str(error) or repr(error)).replace("\0", " "))
            if lane(message):  # the server sends the younger leases of the key back with it
                self.queue = [younger for younger in self.queue if lane(younger) != lane(message)]

    def connected(self) -> psycopg.Connection:
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.conninfo, autocommit=True, row_factory=tuple_row)
        return self.connection

    def disconnect(self) -> None:
        if self.connection:
            with contextlib.suppress(psycopg.Error):
                self.connection.close()
        self.connection = None


def is_passing(error: psycopg.Error) -> bool:
    return error.sqlstate is None or error.sqlstate.startswith(PASSING)
