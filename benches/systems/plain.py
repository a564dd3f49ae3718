"""A plain INSERT: what storing the same facts costs at least. It can only append."""

import payload
from systems.system import System


class Plain(System):
    name = "plain"
    title = "plain INSERT"
    largest = 1_000_000
    api = "INSERT of the same topic, type and payload into a table with a bigint primary key (a uuid one for a caller's id)"
    append = f"INSERT INTO plain (topic, type, payload) VALUES ('{payload.TOPIC}', '{payload.TYPE}', :payload::jsonb);\n"
    append_with_id = f"""INSERT INTO plain_uuid (id, topic, type, payload)
VALUES (gen_random_uuid(), '{payload.TOPIC}', '{payload.TYPE}', :payload::jsonb);
"""
    append_many = f"""INSERT INTO plain (topic, type, payload)
SELECT '{payload.TOPIC}', m.type, m.payload FROM jsonb_to_recordset(:json::jsonb) AS m (type text, payload jsonb);
"""
    clear = "TRUNCATE plain, plain_uuid"
    tables = "relname LIKE 'plain%'"

    def prepare(self, environment):
        return "this PostgreSQL"

    def create(self, arena, database):
        arena.create(database)
        body = "occurred_at timestamptz NOT NULL DEFAULT now(), topic text NOT NULL, type text NOT NULL, payload jsonb NOT NULL"
        arena.sql(
            f"""
            CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {body});
            CREATE TABLE plain_uuid (id uuid PRIMARY KEY, {body});""",
            database,
        )
