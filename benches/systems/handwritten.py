"""The table everybody starts with: a status column, and UPDATE … FOR UPDATE SKIP LOCKED."""

import payload
from systems.system import System

INSERT = "INSERT INTO job (topic, type, payload)"


class Handwritten(System):
    name = "handwritten"
    title = "hand-written table"
    largest = 1_000_000
    api = "status column, partial index on what is ready, UPDATE … WHERE id IN (SELECT … FOR UPDATE SKIP LOCKED), done rows stay"
    append = f"{INSERT} VALUES ({payload.NAME}, '{payload.TYPE}', :payload::jsonb);\n"
    append_many = f"""{INSERT}
SELECT {payload.NAME}, m.type, m.payload FROM jsonb_to_recordset(:json::jsonb) AS m (type text, payload jsonb);
"""
    pipe_append = f"{INSERT} SELECT {payload.NAME}, '{payload.TYPE}', p FROM unnest(%s::jsonb[]) AS p"
    pipe_complete = "UPDATE job SET status = 'done', finished_at = clock_timestamp() WHERE id = ANY (%s::bigint[])"
    pipe_fail = "UPDATE job SET status = 'ready', run_at = clock_timestamp() + interval '1 second' WHERE id = ANY (%s::bigint[])"

    clear = "TRUNCATE job"
    unfinished = "SELECT count(*) FROM job WHERE status <> 'done'"
    tables = "relname = 'job'"

    def prepare(self, environment):
        return "this PostgreSQL"

    def create(self, arena, database):
        arena.create(database)
        arena.sql(
            """
            CREATE TABLE job (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                created_at timestamptz NOT NULL DEFAULT now(),
                run_at timestamptz NOT NULL DEFAULT now(),
                locked_until timestamptz,
                finished_at timestamptz,
                attempts int NOT NULL DEFAULT 0,
                status text NOT NULL DEFAULT 'ready',
                topic text NOT NULL,
                type text NOT NULL,
                payload jsonb NOT NULL);
            CREATE INDEX ON job (id) WHERE status = 'ready';""",
            database,
        )

    def taken(self, count, topic=payload.NAME):
        where = f"topic = {topic} AND " if topic else ""
        return f"""UPDATE job SET status = 'running', attempts = attempts + 1, locked_until = clock_timestamp() + interval '60 s'
 WHERE id IN (SELECT id FROM job WHERE {where}status = 'ready' AND run_at <= clock_timestamp()
               ORDER BY id LIMIT {count} FOR UPDATE SKIP LOCKED)
RETURNING id, type, payload, attempts"""

    @property
    def pipe_hold(self):
        return self.taken(1)

    @property
    def pipe_claim(self):
        return f"WITH t AS ({self.taken('%s')}) SELECT id, payload::text FROM t"

    def claim(self, count, topic=payload.NAME):
        return f"WITH t AS ({self.taken(count, topic)}) SELECT coalesce(array_agg(id), '{{}}') AS ids FROM t \\gset\n"

    def complete(self, count, topic=payload.NAME):
        return "UPDATE job SET status = 'done', finished_at = clock_timestamp() WHERE id = ANY (:ids::bigint[]);\n"

    def fill(self, count, size=300, topics=1):
        topic = payload.NAME if topics == 1 else f"{payload.NAME} || i % {topics}"
        return f"{INSERT} SELECT {topic}, '{payload.TYPE}', $p${payload.one(size)}$p$ FROM generate_series(1, {count}) AS i"

    def state(self, name, count):
        yield self.fill(count)
        if name == "retained":
            yield "UPDATE job SET status = 'done', finished_at = clock_timestamp(), attempts = 1"
        if name == "delayed":
            yield "UPDATE job SET run_at = '2100-01-01'"
        if name == "leased":
            yield "UPDATE job SET status = 'running', attempts = 1, locked_until = '2100-01-01'"
        if name == "expired":  # what its reaper does with leases that ran out
            yield "UPDATE job SET status = 'ready', attempts = 1, locked_until = clock_timestamp()"
