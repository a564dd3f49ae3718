"""PGMQ, through its SQL functions: read and archive, which keeps history, or read and delete, which does not."""

from math import gcd

import payload
import peers
from systems.system import System

QUEUE = payload.TOPIC


class Pgmq(System):
    name = "pgmq"
    title = "PGMQ, archive"
    largest = 1_000_000
    api = "send, send_batch, read(vt 60), archive; queue made by pgmq.create()"
    append = f"SELECT pgmq.send('{QUEUE}', :payload::jsonb);\n"
    append_many = f"SELECT count(*) FROM pgmq.send_batch('{QUEUE}', :array::jsonb[]);\n"
    answer = "archive"

    pipe_append = f"SELECT count(*) FROM pgmq.send_batch('{QUEUE}', %s::jsonb[])"
    pipe_claim = f"SELECT msg_id, message::text FROM pgmq.read('{QUEUE}', 60, %s)"
    pipe_hold = f"SELECT count(*) FROM pgmq.read('{QUEUE}', 43200, 1)"
    pipe_fail = f"SELECT count(*) FROM unnest(%s::bigint[]) AS id, LATERAL pgmq.set_vt('{QUEUE}', id, 1)"

    clear = f"TRUNCATE pgmq.q_{QUEUE}, pgmq.a_{QUEUE}"
    unfinished = f"SELECT count(*) FROM pgmq.q_{QUEUE}"
    tables = "schemaname = 'pgmq'"

    def prepare(self, environment):
        self.script, version = peers.pgmq()
        return version

    def create(self, arena, database):
        arena.create(database)
        arena.sql(self.script.read_text(), database)
        arena.sql(f"SELECT pgmq.create('{QUEUE}')", database)

    def create_topics(self, arena, database, topics):
        for number in range(topics if topics > 1 else 0):  # not in one transaction: it would run out of locks
            arena.sql(f"SELECT pgmq.create('{QUEUE}{number}')", database)

    @property
    def pipe_complete(self):
        return f"SELECT count(*) FROM pgmq.{self.answer}('{QUEUE}', %s::bigint[])"

    def claim(self, count, topic=payload.NAME):
        if not topic:
            return None  # a queue is a table; there is no reading from all of them
        if count == 1:
            return f"SELECT coalesce(max(msg_id), 0) AS ids FROM pgmq.read({topic}, 60, 1) \\gset\n"
        return f"SELECT coalesce(array_agg(msg_id), '{{}}') AS ids FROM pgmq.read({topic}, 60, {count}) \\gset\n"

    def complete(self, count, topic=payload.NAME):
        if count == 1:
            return f"SELECT pgmq.{self.answer}({topic}, :ids::bigint);\n"
        return f"SELECT count(*) FROM pgmq.{self.answer}({topic}, :ids::bigint[]);\n"

    def fill(self, count, size=300, topics=1):
        queues = [f"{QUEUE}{number}" for number in range(topics)] if topics > 1 else [QUEUE]
        return ";".join(sent(queue, count // topics, size) for queue in queues)

    def state(self, name, count):
        yield self.fill(count)
        if name == "retained":
            yield f"""
                WITH over AS (DELETE FROM pgmq.q_{QUEUE} RETURNING msg_id, vt, read_ct, enqueued_at, message, headers)
                INSERT INTO pgmq.a_{QUEUE} (msg_id, vt, read_ct, enqueued_at, message, headers) SELECT * FROM over"""
        if name in ("delayed", "leased"):
            yield f"UPDATE pgmq.q_{QUEUE} SET vt = '2100-01-01', read_ct = {int(name == 'leased')}"
        if name == "expired":
            yield f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp(), read_ct = 1"


def sent(queue, count, size):
    batch = gcd(100, count)
    return f"""
        SELECT count(*) FROM (
            SELECT pgmq.send_batch('{queue}', messages)
              FROM (SELECT array_agg($p${payload.one(size)}$p$::jsonb) FROM generate_series(1, {batch})) AS m (messages),
                   generate_series(1, {count // batch})) AS sent"""


class PgmqDelete(Pgmq):
    name = "pgmq-delete"
    title = "PGMQ, delete"
    largest = 1_000_000
    api = "send, send_batch, read(vt 60), delete; no history"
    answer = "delete"
    keeps_history = False
