"""Load at a fixed pace: a producer and the workers of a system, each a process with a connection of its own.

A message is scheduled, whether or not the system keeps up; its latency counts from that moment to its completion.
Workers take up to 100, fail a share of them, and complete the rest; with nothing to take they rest for 5 ms. Systems
with a client of their own bring their own processes. A message without the time it was scheduled is never answered.
"""

import json
import multiprocessing
import random
import time
from array import array
from collections import defaultdict
from dataclasses import dataclass

import payload
from figures import percentile

BATCH = 100
REST = 0.005
STARTING = 1.5  # until every process is connected
DRAIN = 3.0  # how long workers go on at most after the last message was scheduled, until nothing is left

fork = multiprocessing.get_context("fork")


@dataclass
class Load:
    rate: int  # messages per second
    seconds: float
    group: int  # messages per call
    fails: float = 0.0  # share that workers fail
    patience: float = None  # ends when so many seconds of load are behind schedule
    width: float = None  # seconds that are counted together

    def __post_init__(self):
        self.width = self.width or self.seconds
        self.done = fork.Value("q", 0)
        self.over = fork.Event()
        self.lasted = self.seconds

    @property
    def offered(self):
        """How many messages were scheduled."""
        return int(self.rate * self.lasted / self.group) * self.group

    def schedule(self):
        """The times of the calls, each as soon as it has come; ends early with the load."""
        for call in range(int(self.rate * self.seconds / self.group)):
            due = self.start + call * self.group / self.rate
            time.sleep(max(0, due - time.time()))
            if self.over.is_set():
                return
            yield due

    def watch(self, processes):
        """Waits for the end: everything done, the time to drain over, patience lost, or a process dead."""
        while not self.over.is_set():
            time.sleep(0.05)
            gone = time.time() - self.start
            done = self.done.value
            behind = self.rate * min(gone, self.seconds) - done
            if self.patience and gone < self.seconds and behind > self.patience * self.rate:
                self.lasted = gone
                self.over.set()
            finished = gone > self.seconds and done >= self.offered
            if finished or gone > self.seconds + DRAIN or any(process.exitcode for process in processes):
                self.over.set()


class Notes:
    """What a worker measured, in milliseconds, by the number of the stretch of time in which it ended."""

    def __init__(self, load):
        self.load = load
        self.claims, self.late = defaultdict(floats), defaultdict(floats)

    def claimed(self, *took):
        self.claims[self.stretch()].extend(took)

    def completed(self, *late):
        self.late[self.stretch()].extend(late)
        with self.load.done:
            self.load.done.value += len(late)

    def stretch(self):
        return int((time.time() - self.load.start) / self.load.width)


def floats():
    return array("f")


def offer(arena, database, system, load):
    """Runs the load; returns (claims, late): what all workers noted, by stretch. Claims are those that found something."""
    load.start = time.time() + STARTING
    work = [Process(load, function, arena, database, system, load) for function in system.processes()]
    load.watch([one.process for one in work])
    claims, late = defaultdict(floats), defaultdict(floats)
    for result in [one.result() for one in work]:
        for all, mine in ((claims, "claims"), (late, "late")):
            for number, values in (result or {}).get(mine, {}).items():
                all[number].extend(values)
    return claims, late


class Process:
    """Runs a function in a process of its own and brings its result, or its exception, back."""

    def __init__(self, load, function, *arguments):
        self.end, theirs = fork.Pipe(False)
        self.process = fork.Process(target=self.work, args=(theirs, load, function, arguments), daemon=True)
        self.process.start()
        theirs.close()

    @staticmethod
    def work(end, load, function, arguments):
        try:
            end.send((function(*arguments), None))
        except Exception as error:
            load.over.set()
            end.send((None, f"{function.__name__}: {error}"))

    def result(self):
        try:
            value, error = self.end.recv()
        except EOFError:
            value, error = None, "a process of the load died"
        self.process.join()
        if error:
            raise RuntimeError(error)
        return value


def produce(arena, database, system, load):
    with arena.connect(database) as connection:
        body = payload.one(300, at=0.0)
        single = system.append.replace(":payload", "%s").strip().rstrip(";")
        for due in load.schedule():
            message = body.replace('"at": 0.0', f'"at": {due:.6f}')
            if load.group == 1:
                connection.execute(single, [message])
            else:
                connection.execute(system.pipe_append, [[message] * load.group])


def work(arena, database, system, load):
    notes = Notes(load)
    chance = random.Random(4711)
    with arena.connect(database) as connection:
        while not load.over.is_set():
            began = time.time()
            rows = connection.execute(system.pipe_claim, [BATCH]).fetchall()
            if not rows:
                time.sleep(REST)
                continue
            notes.claimed((time.time() - began) * 1000)
            lost, kept = chosen(rows, load.fails, chance)
            if lost:
                connection.execute(system.pipe_fail, [lost])
            if kept:
                connection.execute(system.pipe_complete, [list(kept)])
                notes.completed(*lateness(kept.values()))
    return {"claims": notes.claims, "late": notes.late}


def chosen(rows, fails, chance):
    """(handles to fail, {handle: scheduled} to complete) of rows (handle, payload)."""
    lost = [handle for handle, _ in rows if chance.random() < fails] if fails else []
    kept = {handle: json.loads(body)["at"] for handle, body in rows}
    for handle in lost:
        del kept[handle]
    return lost, kept


def lateness(scheduled):
    now = time.time()
    return [(now - at) * 1000 for at in scheduled]


def stretches(load, claims, late):
    """Per stretch of the load's time: throughput, and percentiles of the claims and of the latencies."""
    for number in range(max(1, int(load.lasted / load.width))):
        yield {
            "second": number * load.width,
            "rate": len(late[number]) / load.width,
            "claim_p50": percentile(claims[number], 0.5),
            "claim_p99": percentile(claims[number], 0.99),
            "latency_p50": percentile(late[number], 0.5),
            "latency_p99": percentile(late[number], 0.99),
        }
