"""Everything at once and for long, while nothing that is over can be removed: a held snapshot and an append that stays open, both
from the first to the last second. 1,000 messages a second, 10 to a call, go round 8 topics; in four of them each message has one
of 2,000 keys. 4 workers claim up to 50 of any topic. Of the messages of a claim 8 % fail and are due again after a second, 3 % are
never answered and their lease runs out after 5 seconds, 2 % are released; the rest is completed in one call.
Measured by stretches of a sixtieth of the run: the CPU of the clients' backends per message delivered (autovacuum's is not in
it), and how many seconds of load are not delivered yet. At the end, the snapshot still held: what it costs to watch and to look
after such a database, and the first claim of each topic.
"""

import json
import random
import time

import arena as place
import pace
import payload
from figures import percentile

TITLE = "Soak"
RATE, GROUP, TOPICS, KEYS, WORKERS, LEASE = 1000, 10, 8, 2000, 4, 5
FAILED, LOST, RELEASED = 0.08, 0.03, 0.02
STRETCHES = 60
FROM, TO, LAST = 5, 10, 5  # the sixth to the tenth stretch are compared with the last five
DRAIN = 30
REST = 0.02  # after a claim that has found less than half of what it asked for
TOPIC = [f"{payload.TOPIC}{number}" for number in range(TOPICS)]
CLAIM = f"SELECT token FROM outbox.claim('worker', NULL, 50, {LEASE})"
ANSWERS = {
    "completed": "SELECT count(*) FILTER (WHERE completed) FROM outbox.complete_batch(%s::uuid[])",
    "failed": "SELECT count(outbox.fail(t, 'no answer', clock_timestamp() + interval '1 second')) FROM unnest(%s::uuid[]) AS t",
    "released": "SELECT count(outbox.release(t)) FROM unnest(%s::uuid[]) AS t",
}
READS = {
    "stats": "SELECT * FROM outbox.stats",
    "status": "SELECT * FROM outbox.status",
    "redrive that finds nothing": f"SELECT outbox.redrive('{TOPIC[0]}')",
    "redrive that only counts": f"SELECT outbox.redrive('{TOPIC[0]}', dry_run => true)",
    "purge that finds nothing": "SELECT outbox.purge()",
}


def run(bench):
    for system in bench.chosen(lambda s: s.name == "outbox"):
        with bench.attempt(system), place.start(shared_buffers="6GB") as server:
            one(bench, place.Arena(server), system, bench.form.soak_seconds)


def one(bench, arena, system, seconds):
    system.create(arena, "soak")
    with arena.connect("soak") as snapshot, arena.connect("soak") as writer, arena.connect("soak") as reader:
        snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        writer.execute("BEGIN")
        writer.execute("SELECT outbox.append(%s, 't', '1')", [TOPIC[1]])
        load = pace.Load(RATE, seconds, GROUP)
        load.start = time.time() + pace.STARTING
        load.appended = pace.fork.Value("q", 0)
        pids = pace.fork.Array("q", WORKERS + 1)
        work = [pace.Process(load, function, arena, number, load, pids) for number, function in enumerate([produce, *[answer] * WORKERS])]
        watch(bench, system, load, work, pids)
        left = load.appended.value - load.done.value
        claims = [result for result in (one.result() for one in work) if result]
        case = f"{seconds / 60:g} minutes"
        for number in range(STRETCHES):
            took = [ms for result in claims for ms in result.get(number, ())]
            bench.samples.add("soak-claims", case, system.name, number, claim_p50=percentile(took, 0.5), claim_p99=percentile(took, 0.99))
        bench.samples.add("soak-left", case, system.name, 0, left=left, offered=load.appended.value)
        bench.say(f"soak: {left} left of {load.appended.value:,}")
        afterwards(bench, arena, system, reader)


def watch(bench, system, load, work, pids):
    case, width = f"{load.seconds / 60:g} minutes", load.seconds / STRETCHES
    time.sleep(max(0, load.start - time.time()))
    at, done, cpu = load.start, 0, spent(pids)
    for number in range(STRETCHES):
        time.sleep(max(0, load.start + (number + 1) * width - time.time()))
        if any(one.process.exitcode for one in work):
            break
        now, done_now, cpu_now = time.time(), load.done.value, spent(pids)
        rate, per_message = (done_now - done) / (now - at), (cpu_now - cpu) / max(1, done_now - done) * 1e6
        behind = (load.appended.value - done_now) / RATE
        bench.samples.add("soak", case, system.name, number, rate=rate, backend=per_message, behind=behind)
        if number % 5 == 4 or load.seconds > 600:
            bench.say(f"soak: {number + 1} of {STRETCHES}: {rate:,.0f}/s, {per_message:.0f} µs, {behind:.2f} s behind")
        at, done, cpu = now, done_now, cpu_now
    end = time.time() + DRAIN
    while time.time() < end and load.done.value < load.appended.value and not any(one.process.exitcode for one in work):
        time.sleep(0.1)
    load.over.set()


def spent(pids):
    return sum(map(place.worked, pids))


def produce(arena, number, load, pids):
    chance = random.Random(4711)
    with arena.connect("soak", prepare_threshold=0) as connection:
        pids[number] = connection.info.backend_pid
        for call, _ in enumerate(load.schedule()):
            topic = call % TOPICS
            key = (lambda: f"customer-{chance.randrange(KEYS)}") if topic % 2 == 0 else lambda: None
            messages = [{"type": payload.TYPE, "payload": 1, "key": key()} for _ in range(GROUP)]
            connection.execute("SELECT count(*) FROM outbox.append_batch(%s, %s)", [TOPIC[topic], json.dumps(messages)])
            with load.appended:
                load.appended.value += GROUP
        load.over.wait()


def answer(arena, number, load, pids):
    chance = random.Random(number)
    claims = {}  # by stretch: milliseconds
    with arena.connect("soak", prepare_threshold=0) as connection:
        pids[number] = connection.info.backend_pid
        while not load.over.is_set():
            began = time.perf_counter()
            tokens = [token for (token,) in connection.execute(CLAIM).fetchall()]
            stretch = int((time.time() - load.start) / load.seconds * STRETCHES)
            claims.setdefault(stretch, []).append((time.perf_counter() - began) * 1000)
            fates = chance.choices([*ANSWERS, "lost"], [1 - FAILED - LOST - RELEASED, FAILED, RELEASED, LOST], k=len(tokens))
            for fate, statement in ANSWERS.items():
                mine = [token for token, its in zip(tokens, fates) if its == fate]
                if mine:
                    (count,) = connection.execute(statement, [mine]).fetchone()
                    if fate == "completed":
                        with load.done:
                            load.done.value += count
            if len(tokens) < 25:
                time.sleep(REST)
    return claims


def afterwards(bench, arena, system, reader):
    for what, statement in READS.items():
        took = [timed(reader, statement) for _ in range(5)]
        note(bench, system, what, took)
    took = []
    for topic in TOPIC:
        with arena.connect("soak") as worker:
            worker.execute("SELECT outbox.extend('00000000-0000-8001-8000-000000000001')")  # the library is loaded before
            took.append(timed(worker, f"SELECT * FROM outbox.claim('first', '{topic}', 1)"))
    note(bench, system, "first claim of a topic", took)


def timed(connection, statement):
    began = time.perf_counter()
    connection.execute(statement).fetchall()
    return (time.perf_counter() - began) * 1000


def note(bench, system, what, took):
    bench.samples.add("soak-afterwards", what, system.name, 0, read_p50=percentile(took, 0.5), read_max=max(took))
    bench.say(f"soak: afterwards: {what}: {percentile(took, 0.5):.1f} ms, at most {max(took):.1f} ms")
