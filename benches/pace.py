"""A paced producer and two workers, each a process with a connection of its own.

A message is scheduled, whether or not the system keeps up; its latency counts from that moment to its completion.
Workers take up to 100, fail a share of them, and complete the rest; with nothing to take they rest for 5 ms.
"""

import json
import multiprocessing
import random
import time

import payload
from figures import percentile

WORKERS = 2
BATCH = 100
REST = 0.005
DRAIN = 3.0  # how long workers go on at most after the last message was scheduled, until nothing is left

fork = multiprocessing.get_context("fork")


def offer(arena, database, system, rate, seconds, group, fails=0.0):
    """Offers `rate` messages per second, `group` per call; returns what the workers noted: claims that found something, and completions."""
    start = time.time() + 0.3
    produce = (arena, database, system, rate, seconds, group, start)
    processes = [Process(producer, *produce)]
    processes += [Process(worker, arena, database, system, start + seconds, fails) for _ in range(WORKERS)]
    _, *notes = [process.result() for process in processes]
    claims = sorted(entry for note in notes for entry in note["claims"])
    completions = sorted(entry for note in notes for entry in note["completions"])
    return start, claims, completions


class Process:
    """Runs a function in a process of its own and brings its result, or its exception, back."""

    def __init__(self, function, *arguments):
        self.end, theirs = fork.Pipe(False)
        self.process = fork.Process(target=self.work, args=(theirs, function, arguments), daemon=True)
        self.process.start()
        theirs.close()

    @staticmethod
    def work(end, function, arguments):
        try:
            end.send((function(*arguments), None))
        except Exception as error:
            end.send((None, f"{function.__name__}: {error}"))

    def result(self):
        try:
            value, error = self.end.recv()
        except EOFError:
            value, error = None, "a process of the pipe died"
        self.process.join()
        if error:
            raise RuntimeError(error)
        return value


def producer(arena, database, system, rate, seconds, group, start):
    with arena.connect(database) as connection:
        body = payload.one(300, at=0.0)
        single = system.append.replace(":payload", "%s").strip().rstrip(";")
        for call in range(int(rate * seconds / group)):
            due = start + call * group / rate
            time.sleep(max(0, due - time.time()))
            message = body.replace('"at": 0.0', f'"at": {due:.6f}')
            if group == 1:
                connection.execute(single, [message])
            else:
                connection.execute(system.pipe_append, [[message] * group])


def worker(arena, database, system, end, fails):
    claims, completions = [], []
    chance = random.Random(4711)
    with arena.connect(database) as connection:
        while True:
            began = time.time()
            if began > end + DRAIN:
                break
            rows = connection.execute(system.pipe_claim, [BATCH]).fetchall()
            took = (time.time() - began) * 1000
            if not rows and began > end and not fails:
                break
            if not rows:
                time.sleep(REST)
                continue
            claims.append((began, took))
            lost = [handle for handle, _ in rows if chance.random() < fails] if fails else []
            kept = {handle: json.loads(body)["at"] for handle, body in rows}
            for handle in lost:
                del kept[handle]
            if lost:
                connection.execute(system.pipe_fail, [lost])
            if kept:
                connection.execute(system.pipe_complete, [list(kept)])
                now = time.time()
                completions += [(now, (now - at) * 1000) for at in kept.values()]
    return {"claims": claims, "completions": completions}


def buckets(start, seconds, width, claims, completions):
    """Per `width` seconds: throughput, and percentiles of the claims and of the latencies."""
    for number in range(int(seconds / width)):
        begin = start + number * width
        took = [ms for at, ms in claims if begin <= at < begin + width]
        late = [ms for at, ms in completions if begin <= at < begin + width]
        yield {
            "second": number * width,
            "rate": len(late) / width,
            "claim_p50": percentile(took, 0.5),
            "claim_p99": percentile(took, 0.99),
            "latency_p50": percentile(late, 0.5),
            "latency_p99": percentile(late, 0.99),
        }
