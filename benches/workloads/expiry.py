"""Leases that run out, when much has been delivered and nothing that is over can be removed. A snapshot is held; all that is to
be delivered before is appended by 5,000 and delivered by 500, without keys, in two sessions. Then 300 messages a second come, one
per call, into 4 topics; 4 workers claim up to 10 of any topic, rest for 20 ms when they find nothing, and complete; of the first
leases of messages, which last 2 seconds, 5 % are never answered. Nothing fails, and the snapshot is held to the end.
Measured: from a lease's end to the claim that takes the message again, and each claim, by the clock and by its backend's CPU.
"""

import random
import threading
import time

import arena as place
import pace
import payload
from figures import percentile

TITLE = "Leases that run out beside a held snapshot"
RATE, TOPICS, WORKERS, LOST, LEASE = 300, 4, 4, 0.05, 2
BEFORE = f"""
    DO $$
    DECLARE
        messages jsonb := (SELECT jsonb_agg('{{"type": "{payload.TYPE}", "payload": 1}}'::jsonb) FROM generate_series(1, 5000));
        tokens uuid[];
    BEGIN
        FOR i IN 1..%s LOOP
            PERFORM count(*) FROM outbox.append_batch({payload.NAME} || 0, messages);
            COMMIT;
            LOOP
                SELECT array_agg(token) INTO tokens FROM outbox.claim('before', NULL, 500);
                EXIT WHEN tokens IS NULL;
                PERFORM count(*) FROM outbox.complete_batch(tokens);
                COMMIT;
            END LOOP;
        END LOOP;
    END $$"""
APPEND = f"SELECT outbox.append(%s, '{payload.TYPE}', '1')"
CLAIM = f"SELECT id, token, attempts, leased_until, clock_timestamp() FROM outbox.claim('worker', NULL, 10, {LEASE})"
COMPLETE = "SELECT count(*) FROM outbox.complete_batch(%s::uuid[])"


def run(bench):
    for system in bench.chosen(lambda s: s.name == "outbox"):
        delivered, seconds = bench.form.expiry
        with bench.attempt(system), place.start(shared_buffers="2GB") as server:
            one(bench, place.Arena(server), system, delivered, seconds)


def one(bench, arena, system, delivered, seconds):
    case = f"{delivered:,} delivered before"
    system.create(arena, "expiry")
    with arena.connect("expiry") as snapshot:
        snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        deliver_before(arena, delivered)
        bench.say(f"expiry: {case}: they are")
        load = pace.Load(RATE, seconds, 1)
        load.start = time.time() + pace.STARTING
        load.finished = pace.fork.Value("d", 0)  # when the last message was appended
        work = [pace.Process(load, function, arena, number, load) for number, function in enumerate([produce, *[lose] * WORKERS])]
        watch(load, work)
        results = [one.result() for one in work][1:]
    ends = {id: until for lost, _, _ in results for id, until in lost}
    again = [(at - ends[id]).total_seconds() * 1000 for _, again, _ in results for id, at in again]
    claims = [claim for _, _, claims in results for claim in claims]
    took, cpu = ([claim[i] for claim in claims] for i in (0, 1))
    bench.samples.add(
        "expiry", case, system.name, 0, left=len(ends) - len(again), again_p50=percentile(again, 0.5), again_p99=percentile(again, 0.99),
        claim_p50=percentile(took, 0.5), claim_p99=percentile(took, 0.99), claim_max=max(took), claim_cpu_max=max(cpu),
    )  # fmt: skip
    bench.say(
        f"expiry: {case}: taken again after p50 {percentile(again, 0.5):,.0f} ms, p99 {percentile(again, 0.99):,.0f} ms, "
        f"{len(again)} of {len(ends)}; longest claim {max(took):,.1f} ms, {max(cpu):,.1f} ms of CPU"
    )
    arena.drop("expiry")


def deliver_before(arena, count):
    def work():
        with arena.connect("expiry", options="-c synchronous_commit=off") as connection:
            connection.execute(BEFORE % (count // 5000 // 2))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def watch(load, work):
    """Workers go on until what was left last has been taken again, or should have been long ago."""
    while not load.over.is_set():
        time.sleep(0.05)
        done = load.finished.value
        if done and time.time() > done + LEASE + 3 or any(one.process.exitcode for one in work):
            load.over.set()


def produce(arena, number, load):
    with arena.connect("expiry", prepare_threshold=0) as connection:
        for call, _ in enumerate(load.schedule()):
            connection.execute(APPEND, [f"{payload.TOPIC}{call % TOPICS}"])
    load.finished.value = time.time()


def lose(arena, number, load):
    """[message never answered, its lease's end], [message taken again, when], [milliseconds of a claim, the same of CPU]"""
    chance, lost, again, claims = random.Random(number), [], [], []
    with arena.connect("expiry", prepare_threshold=0) as connection:
        pid = connection.info.backend_pid
        while not load.over.is_set():
            before, began = place.worked(pid), time.perf_counter()
            rows = connection.execute(CLAIM).fetchall()
            claims.append(((time.perf_counter() - began) * 1000, (place.worked(pid) - before) * 1000))
            kept = []
            for id, token, attempts, until, at in rows:
                if attempts > 1:
                    again.append((id, at))
                if attempts == 1 and chance.random() < LOST:
                    lost.append((id, until))
                else:
                    kept.append(token)
            if kept:
                connection.execute(COMPLETE, [kept])
            if not rows:
                time.sleep(0.02)
    return lost, again, claims
