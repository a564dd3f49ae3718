"""From the call of append to the message in a worker's hands, the ways of waiting in turn, round by round; what appenders
pay for waiting workers; and what waiting costs.

Idle: one producer, one message after the other, one worker. Busy: two producers, two workers. Synchronous commit is on,
so a commit's flush is part of it. Inside the server, on one of its own with `track_commit_timestamp` and `fsync` off,
because the flush is not part of it: from the commit to the rows of a claim that waited. There the producer is a loop in
the server, since its client would want the processor that the worker wakes on. Idle processors have gone to sleep in
between, and the host of a virtual machine takes its time to wake one. Appenders beside workers: workers that wait for
the same topic deliver all of it, on the same processors; so do workers that poll every 100 ms, for comparison. Workers
that wait for another topic do nothing.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import arena as place
import pace
import payload
import pgbench
from figures import percentile
from server import Server
from systems.graphile_worker import GraphileWorker
from systems.in_node import drive
from systems.outbox import Outbox

TITLE = "Latency and waiting"
IDLE, BUSY = "idle", "1,000 messages per second"
RATES = {IDLE: 40, BUSY: 1000}
BESIDE = "append beside {}, 4 clients, synchronous commit on"
NOBODY, WHO_WAIT, WHO_ASK = "no worker", "{} waiting workers", "8 workers that poll every 100 ms"
ELSEWHERE, NOTIFIED = "8 workers that wait for another topic", "no worker, with NOTIFY in the transaction"
WAITING, LISTENING = "claim with wait_seconds", "LISTEN, its own"
SERVER = "{}: inside the server"
PAUSES = {IDLE: "0.002 + 0.004 * random()", BUSY: "0.0005 + 0.001 * random()"}  # seconds between two messages
ONE_BY_ONE = "50 workers, one message at a time"
NOTHING = "50 sessions that wait, nothing to do"
POLL = 0.1


def run(bench):
    for round in range(bench.form.pipe_rounds):
        for rate in RATES if bench.form.latency_busy else [IDLE]:
            for title, name, way in ways():
                for system in bench.chosen(lambda s, name=name: s.name == name):
                    case = f"{rate}: {title}"
                    with bench.attempt(system, case):
                        hands(bench, system, case, round, RATES[rate], way)
    for system in bench.chosen(lambda s: s.name == "outbox"):
        for part in (appenders, nothing_to_do, one_by_one, in_the_server):
            with bench.attempt(system, part.__name__):
                part(bench, system)


# -- ways to wait: each returns the rows (handle, payload) it has, perhaps none -----------------


def ways():
    """(title, system, worker): the worker is a function of the load, run in a process of its own."""
    yield WAITING, "outbox", received(claim_waiting)
    yield "CALL wait, then claim", "outbox", received(call_wait)
    yield "outbox.notify, LISTEN, then claim", "outbox", received(listen)
    yield "claim every 100 ms", "outbox", received(poll)
    yield "NOTIFY in the transaction, LISTEN, then take", "handwritten", received(listen)
    yield "take every 100 ms", "handwritten", received(poll)
    yield "read_with_poll, at its default of 100 ms", "pgmq", received(read_with_poll)
    yield LISTENING, "graphile-worker", in_node


def claim_waiting(connection, system):
    statement = f"SELECT token, payload::text FROM outbox.claim('worker', {payload.NAME}, %s, wait_seconds => 1)"
    return connection.execute(statement, [pace.BATCH]).fetchall()


def call_wait(connection, system):
    rows = take(connection, system)
    if not rows:
        connection.execute(f"CALL outbox.wait({payload.NAME}, 1)")
    return rows


def listen(connection, system):
    rows = take(connection, system)
    if not rows:
        list(connection.notifies(timeout=1, stop_after=1))
    return rows


def poll(connection, system):
    rows = take(connection, system)
    if not rows:
        time.sleep(POLL)
    return rows


def read_with_poll(connection, system):
    statement = f"SELECT msg_id, message::text FROM pgmq.read_with_poll({payload.NAME}, 60, %s, 1)"
    return connection.execute(statement, [pace.BATCH]).fetchall()


def take(connection, system):
    return connection.execute(system.pipe_claim, [pace.BATCH]).fetchall()


def received(way):
    return partial(work, way)


def work(way, arena, database, system, load):
    notes = pace.Notes(load)
    with arena.connect(database, prepare_threshold=0) as connection:
        if way is listen:
            connection.execute(f'LISTEN "{channel(system)}"')
        while not load.over.is_set():
            rows = way(connection, system)
            if rows:
                _, kept = pace.chosen(rows, 0, None)
                notes.completed(*pace.lateness(kept.values()))
                connection.execute(system.pipe_complete, [list(kept)])
    return {"claims": notes.claims, "late": notes.late}


class Hands(GraphileWorker):
    driver = "hands.mjs"


def in_node(arena, database, system, load):
    hands = Hands()
    hands.home = system.home
    return drive("hands", arena, database, hands, load)


def channel(system):
    return "outbox" if system.name == "outbox" else payload.TOPIC


def produce(statement, arena, database, system, load):
    """Not earlier than scheduled, and at no regular distance; a message carries the time of its own call."""
    body = payload.one(300, at=0.0)
    chance = random.Random(4711)
    with arena.connect(database, prepare_threshold=0) as connection:
        for _ in load.schedule():
            time.sleep(chance.random() / load.rate / 2)
            connection.execute(statement, [body.replace('"at": 0.0', f'"at": {time.time():.6f}')])


def statement(system, way):
    single = system.append.replace(":payload", "%s").strip().rstrip(";")
    if way.args == (listen,) and system.name != "outbox":
        return f"WITH appended AS ({single} RETURNING 1) SELECT pg_notify('{channel(system)}', '') FROM appended"
    return single


def hands(bench, system, case, round, rate, way):
    arena, seconds = bench.arena, bench.form.latency_seconds
    count = 1 if rate == RATES[IDLE] else 2
    notifies = system.name == "outbox" and getattr(way, "args", ()) == (listen,)
    bench.empty(system)
    if notifies:
        arena.server.reload(**{"outbox.notify": True})
    load = pace.Load(rate // count, seconds, 1)
    load.start = time.time() + pace.STARTING
    load.offers = count
    producer = partial(produce, statement(system, way) if way is not in_node else statement(system, received(poll)))
    processes = [pace.Process(load, one, arena, system.name, system, load) for one in [producer, way] * count]
    watch(load, [one.process for one in processes], count)
    results = [one.result() for one in processes]
    if notifies:
        arena.server.reload(**{"outbox.notify": None})
    late = [ms for result in results if result for values in result["late"].values() for ms in values]
    p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
    bench.samples.add("latency", case, system.name, round, hands_p50=p50, hands_p99=p99, hands_max=max(late))
    bench.say(f"latency: {case}: {system.title}: {p50:.2f} ms, {p99:.2f} ms")


def watch(load, processes, producers):
    """Until every message has come, or as long as that may take."""
    expected = producers * int(load.rate * load.seconds)
    while not load.over.is_set():
        time.sleep(0.05)
        late = time.time() > load.start + load.seconds + pace.DRAIN
        if late or load.done.value >= expected or any(process.exitcode for process in processes):
            load.over.set()


# -- sessions that wait ------------------------------------------------------------------------


class Sleepers:
    """Workers in threads, each with a connection: they claim by 100, wait up to two seconds, and complete."""

    def __init__(self, bench, system, count, batch=100):
        self.bench, self.system, self.batch = bench, system, batch
        self.over = threading.Event()
        self.got, self.calls = [], 0
        self.connections = [bench.arena.connect(system.name, prepare_threshold=0) for _ in range(count)]
        self.threads = [threading.Thread(target=self.work, args=[one], daemon=True) for one in self.connections]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)
        return self

    def work(self, connection):
        claim = f"SELECT id, token FROM outbox.claim('worker', {payload.NAME}, {self.batch}, wait_seconds => 2)"
        while not self.over.is_set():
            self.calls += 1
            rows = connection.execute(claim).fetchall()
            if rows:
                connection.execute(self.system.pipe_complete, [[token for _, token in rows]])
                self.got += [id for id, _ in rows]

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for connection in self.connections:
            connection.close()


def appenders(bench, system):
    """The appender's throughput beside workers, and with a NOTIFY of its own instead."""
    wait = waiting(system, payload.NAME)
    cases = [(NOBODY, system, 0, ""), *((WHO_WAIT.format(count), system, count, wait) for count in (1, 8, 50))]
    cases += [(WHO_ASK, system, 8, f"\\sleep {POLL * 1000:.0f} ms\n" + system.claim(100) + system.complete(100))]
    cases += [(ELSEWHERE, system, 8, waiting(system, "'elsewhere'")), (NOTIFIED, Notifying(), 0, "")]
    for round in range(bench.form.latency_rounds):
        for title, appender, count, script in cases[:: -1 if round % 2 else 1]:
            bench.empty(system)
            with workers(bench, system, count, script):
                done = appender.run_append(bench.arena, system.name, 4, bench.form.seconds, True)
            bench.sample("latency", BESIDE.format(title), system, round, done, done.transactions)


def waiting(system, topic):
    claim = system.claim(100, topic)
    return claim.replace("100)", "100, wait_seconds => 1)") + system.complete(100)


@contextmanager
def workers(bench, system, count, script):
    """So many sessions that run `script` meanwhile; raises what ended them early."""
    if not count:
        yield
        return
    with ThreadPoolExecutor() as threads:
        work = threads.submit(pgbench.run, bench.arena, system.name, script, count, bench.form.seconds + 1)
        time.sleep(0.5)
        yield
        work.result()


class Notifying(Outbox):
    """In one statement, so that there is no round trip more."""

    append = f"{Outbox.append.strip().rstrip(';')}, pg_notify('{payload.TOPIC}', '');\n"


def nothing_to_do(bench, system):
    """50 sessions that wait for messages that do not come."""
    bench.empty(system)
    with Sleepers(bench, system, 50), bench.meter() as meter:
        time.sleep(max(5, bench.form.seconds))
    cpu = meter.cpu / meter.seconds * 100
    bench.samples.add("latency", NOTHING, system.name, 0, core=cpu)
    bench.say(f"latency: {NOTHING}: {cpu:.2f} % of a core")


def one_by_one(bench, system):
    """Looks at the table beyond the two that each call makes, per message."""
    looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_ready'"
    count = bench.form.one_by_one
    bench.empty(system)
    with bench.arena.connect(system.name) as producer:
        before = producer.execute(looks).fetchone()[0]
        with Sleepers(bench, system, 50) as sleepers:
            sent = []
            for _ in range(count):
                sent.append(producer.execute(f"SELECT outbox.append({payload.NAME}, '{payload.TYPE}', '1')").fetchone()[0])
                while len(sleepers.got) < len(sent):
                    time.sleep(0.001)
        if sorted(sleepers.got) != sorted(sent):
            raise RuntimeError(f"{len(sent)} messages were sent, {len(sleepers.got)} came")
        time.sleep(1)  # until the last session has reported
        woken = producer.execute(looks).fetchone()[0] - before - 2 * sleepers.calls
    bench.samples.add("latency", ONE_BY_ONE, system.name, 0, wakeups=woken / count)
    bench.say(f"latency: {ONE_BY_ONE}: {woken / count:.2f} wake-ups per message")


def in_the_server(bench, system):
    """From the commit's own time stamp to the clock beside a waiting claim's rows."""
    bench.arena.settle()
    with Server(conf={**place.CONF, "track_commit_timestamp": True, "fsync": False}) as server:
        arena = place.Arena(server)
        system.create(arena, system.name)
        for round in range(bench.form.latency_rounds):
            for rate, pause in PAUSES.items():
                late = list(commit_to_rows(arena, system, bench.form.one_by_one, pause))
                p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
                bench.samples.add("latency", SERVER.format(rate), system.name, round, rows_p50=p50, rows_p99=p99)
                bench.say(f"latency: {SERVER.format(rate)}: {p50:.0f} µs, {p99:.0f} µs")


def commit_to_rows(arena, system, count, pause):
    seen = {}

    def work(connection):
        claim = f"SELECT id, token, clock_timestamp() FROM outbox.claim('worker', {payload.NAME}, wait_seconds => 30)"
        while len(seen) < count:
            rows = connection.execute(claim).fetchall()
            seen.update((id, at) for id, _, at in rows)
            connection.execute(system.pipe_complete, [[token for _, token, _ in rows]])

    with arena.connect(system.name) as producer, arena.connect(system.name, prepare_threshold=0) as worker:
        thread = threading.Thread(target=work, args=[worker], daemon=True)
        thread.start()
        producer.execute(f"""
            DO $$ BEGIN
                FOR i IN 1..{count} LOOP
                    PERFORM pg_sleep({pause});
                    PERFORM outbox.append({payload.NAME}, '{payload.TYPE}', '1');
                    COMMIT;
                END LOOP;
            END $$""")
        thread.join()
        commits = "SELECT id, pg_xact_commit_timestamp(xmin) FROM outbox.envelope WHERE id = ANY (%s)"
        for id, committed in producer.execute(commits, [list(seen)]):
            yield (seen[id] - committed).total_seconds() * 1e6
