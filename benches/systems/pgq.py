"""PgQ: events leave in batches cut by a ticker, one consumer per name, and a batch is answered as a whole."""

import payload
import peers
from systems.system import System

EVENT = f"pgq.insert_event('{payload.TOPIC}', '{payload.TYPE}'"


class Pgq(System):
    name = "pgq"
    title = "PgQ"
    api = "insert_event; ticker, next_batch, get_batch_events, finish_batch; a tick after every 100 events, no lease per message"
    parallel = False
    append = f"SELECT {EVENT}, :payload);\n"
    append_many = f"SELECT count({EVENT}, p::text)) FROM unnest(:array::json[]) AS p;\n"
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
            SELECT pgq.register_consumer('{payload.TOPIC}', 'worker');""",
            database,
        )

    def empty(self, arena, database):
        arena.sql(f"SELECT pgq.drop_queue('{payload.TOPIC}', true)", database)
        self.begin(arena, database)

    def make_ready(self, arena, database, count, size=300, topics=1):
        """100 events and a tick, as often as needed: a tick is a snapshot, so each in its own transaction."""
        self.empty(arena, database)
        arena.settle()
        events = f"SELECT count({EVENT}, $p${payload.one(size)}$p$)) FROM generate_series(1, 100);\n"
        tick = f"SELECT pgq.ticker('{payload.TOPIC}');\n"
        arena.sql((events + tick) * (count // 100), database)
        arena.sql("ANALYZE", database)

    def claim(self, count, any_topic=False):
        if count != 100 or any_topic:
            return None  # a batch is what lies between two ticks
        return f"""SELECT pgq.next_batch('{payload.TOPIC}', 'worker') AS batch \\gset
SELECT count(*) FROM pgq.get_batch_events(:batch::bigint);
"""

    def complete(self, count):
        return "SELECT pgq.finish_batch(:batch::bigint);\n"
