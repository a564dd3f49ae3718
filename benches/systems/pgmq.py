"""PGMQ, through its SQL functions: read and archive, which keeps history, or read and delete, which does not."""

import payload
import peers
from systems.system import System

QUEUE = payload.TOPIC


class Pgmq(System):
    name = "pgmq"
    title = "PGMQ, archive"
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

    @property
    def pipe_complete(self):
        return f"SELECT count(*) FROM pgmq.{self.answer}('{QUEUE}', %s::bigint[])"

    def claim(self, count, any_topic=False):
        if any_topic:
            return None  # a queue is a table; there is no reading from all of them
        if count == 1:
            return f"SELECT coalesce(max(msg_id), 0) AS ids FROM pgmq.read('{QUEUE}', 60, 1) \\gset\n"
        return f"SELECT coalesce(array_agg(msg_id), '{{}}') AS ids FROM pgmq.read('{QUEUE}', 60, {count}) \\gset\n"

    def complete(self, count):
        if count == 1:
            return f"SELECT pgmq.{self.answer}('{QUEUE}', :ids::bigint);\n"
        return f"SELECT count(*) FROM pgmq.{self.answer}('{QUEUE}', :ids::bigint[]);\n"

    def fill(self, count, size=300, topics=1):
        batch = min(100, count)
        return f"""
            SELECT count(*) FROM (
                SELECT pgmq.send_batch('{QUEUE}', messages)
                  FROM (SELECT array_agg($p${payload.one(size)}$p$::jsonb) FROM generate_series(1, {batch})) AS m (messages),
                       generate_series(1, {count // batch})) AS sent"""

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


class PgmqDelete(Pgmq):
    name = "pgmq-delete"
    title = "PGMQ, delete"
    api = "send, send_batch, read(vt 60), delete; no history"
    answer = "delete"
    keeps_history = False
