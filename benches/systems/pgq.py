"""PgQ: events leave in batches cut by a ticker, one consumer per name, and a batch is answered as a whole."""

import random
import time

import pace
import payload
import peers
from systems.system import System

EVENT = f"pgq.insert_event('{payload.TOPIC}', '{payload.TYPE}'"
PERIOD = 0.05  # seconds between ticks under a paced load; its daemon's default is 1
MAINTENANCE = 30  # seconds; what its daemon does every two minutes


class Pgq(System):
    name = "pgq"
    title = "PgQ"
    api = "insert_event, next_batch, get_batch_events, event_retry, finish_batch; a tick after every 100 events, under a paced load every 50 ms; one consumer, no lease per message"
    parallel = False
    append = f"SELECT {EVENT}, :payload);\n"
    append_many = f"SELECT count({EVENT}, p::text)) FROM unnest(:array::json[]) AS p;\n"
    pipe_append = f"SELECT count({EVENT}, p)) FROM unnest(%s::text[]) AS p"
    unfinished = "SELECT 0"
    tables = "schemaname = 'pgq'"

    def prepare(self, environment):
        return peers.pgq(environment)

    def create(self, arena, database):
        arena.create(database)
        arena.sql("CREATE EXTENSION pgq", database)
        self.begin(arena, database)

    def begin(self, arena, database):
        arena.sql(
            f"""
            SELECT pgq.create_queue('{payload.TOPIC}');
            SELECT pgq.set_queue_config('{payload.TOPIC}', 'ticker_max_count', '50');
            SELECT pgq.set_queue_config('{payload.TOPIC}', 'ticker_max_lag', '{PERIOD} seconds');
            SELECT pgq.register_consumer('{payload.TOPIC}', 'worker');""",
            database,
        )

    def empty(self, arena, database):
        arena.sql(f"SELECT pgq.drop_queue('{payload.TOPIC}', true)", database)
        self.begin(arena, database)

    def make_ready(self, arena, database, count, size=300):
        """100 events and a tick, as often as needed: a tick is a snapshot, so each in its own transaction."""
        self.empty(arena, database)
        arena.settle()
        events = self.fill(100, size) + ";\n"
        tick = f"SELECT pgq.ticker('{payload.TOPIC}');\n"
        arena.sql((events + tick) * (count // 100), database)
        arena.sql("ANALYZE", database)

    def fill(self, count, size=300, topics=1):
        return f"SELECT count({EVENT}, $p${payload.one(size)}$p$)) FROM generate_series(1, {count})"

    def claim(self, count, topic=payload.NAME):
        if count != 100 or not topic:
            return None  # a batch is what lies between two ticks
        return f"""SELECT pgq.next_batch('{payload.TOPIC}', 'worker') AS batch \\gset
SELECT count(*) FROM pgq.get_batch_events(:batch::bigint);
"""

    def complete(self, count, topic=payload.NAME):
        return "SELECT pgq.finish_batch(:batch::bigint);\n"

    def processes(self):
        return [pace.produce, consume, tick, maintain]


def consume(arena, database, system, load):
    notes = pace.Notes(load)
    chance = random.Random(4711)
    with arena.connect(database) as connection:
        while not load.over.is_set():
            began = time.time()
            (batch,) = connection.execute("SELECT pgq.next_batch(%s, 'worker')", [payload.TOPIC]).fetchone()
            if batch is None:
                time.sleep(pace.REST)
                continue
            rows = connection.execute("SELECT ev_id, ev_data FROM pgq.get_batch_events(%s)", [batch]).fetchall()
            if rows:
                notes.claimed((time.time() - began) * 1000)
            lost, kept = pace.chosen([row for row in rows if '"at"' in row[1]], load.fails, chance)
            if lost:
                retry = "SELECT count(pgq.event_retry(%s, id, 1)) FROM unnest(%s::bigint[]) AS id"
                connection.execute(retry, [batch, lost])
            connection.execute("SELECT pgq.finish_batch(%s)", [batch])
            notes.completed(*pace.lateness(kept.values()))
    return {"claims": notes.claims, "late": notes.late}


def tick(arena, database, system, load):
    with arena.connect(database) as connection:
        while not load.over.wait(PERIOD):
            connection.execute("SELECT pgq.ticker()")


def maintain(arena, database, system, load):
    """Brings back what was retried, every second, and rotates and vacuums tables as its functions ask for."""
    last = time.time()
    with arena.connect(database) as connection:
        while not load.over.wait(1):
            while connection.execute("SELECT pgq.maint_retry_events()").fetchone()[0]:
                pass
            if time.time() - last > MAINTENANCE:
                last = time.time()
                for name, argument in connection.execute("SELECT * FROM pgq.maint_operations()").fetchall():
                    if name == "vacuum":
                        connection.execute(f"VACUUM {argument}")
                    else:
                        connection.execute(f"SELECT {name}({'%s' if argument else ''})", [argument] if argument else None)
