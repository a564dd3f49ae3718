"""outbox, through the functions of its contract. Only rows that would take hours by calls are made by SQL."""

import json
import re
from math import gcd

import payload
import pgbench
import setup
from systems.system import System


class Outbox(System):
    name = "outbox"
    title = "outbox"
    largest = 1_000_000
    api = "append, append_batch, claim, complete, complete_batch; default settings"
    append = f"SELECT outbox.append('{payload.TOPIC}', '{payload.TYPE}', :payload::jsonb);\n"
    append_with_id = append.replace(")", ", gen_random_uuid())", 1)
    append_many = f"SELECT count(*) FROM outbox.append_batch('{payload.TOPIC}', :json::jsonb);\n"

    pipe_append = f"""
        SELECT count(*) FROM outbox.append_batch('{payload.TOPIC}', (
            SELECT jsonb_agg(jsonb_build_object('type', '{payload.TYPE}', 'payload', p)) FROM unnest(%s::jsonb[]) AS p))"""
    pipe_claim = f"SELECT token, payload::text FROM outbox.claim('worker', '{payload.TOPIC}', %s)"
    pipe_complete = "SELECT count(*) FROM outbox.complete_batch(%s::uuid[])"
    pipe_fail = """
        SELECT count(outbox.fail(token, 'no answer', clock_timestamp() + interval '1 second')) FROM unnest(%s::uuid[]) AS token"""
    pipe_hold = f"SELECT count(*) FROM outbox.claim('stuck', '{payload.TOPIC}', 1, 43200)"

    clear = "TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt"
    unfinished = "SELECT count(*) FROM outbox.delivery"
    tables = "schemaname = 'outbox'"

    def prepare(self, environment):
        return version()

    def create(self, arena, database):
        arena.create(database)
        arena.sql("CREATE EXTENSION outbox", database)

    def claim(self, count, topic=payload.NAME):
        topic = topic or "NULL"
        if count == 1:
            return f"SELECT max(token::text) AS ids FROM outbox.claim('worker', {topic}, 1) \\gset\n"
        return f"SELECT coalesce(array_agg(token), '{{}}') AS ids FROM outbox.claim('worker', {topic}, {count}) \\gset\n"

    def complete(self, count, topic=payload.NAME):
        if count == 1:
            return "SELECT outbox.complete(:ids::uuid);\n"
        return "SELECT count(*) FROM outbox.complete_batch(:ids::uuid[]);\n"

    def fill(self, count, size=300, topics=1):
        if topics > 1:
            name = f"{payload.NAME} || i % {topics}"
            return f"""
                SELECT count(outbox.append({name}, '{payload.TYPE}', $p${payload.one(size)}$p$))
                  FROM generate_series(1, {count}) AS i"""
        batch = gcd(100, count) if size < 100_000 else 1
        return f"""
            SELECT count(*) FROM (
                SELECT outbox.append_batch({payload.NAME}, messages)
                  FROM (SELECT jsonb_agg(jsonb_build_object('type', '{payload.TYPE}', 'payload', $p${payload.one(size)}$p$::jsonb))
                          FROM generate_series(1, {batch})) AS m (messages),
                       generate_series(1, {count // batch})) AS appended"""

    def state(self, name, count):
        """The rows that append_batch of 100, and what came after, left; of ten million, sooner than by calls."""
        if name == "behind one key":
            yield Keyed(1).fill(count)
            yield f"SELECT count(*) FROM outbox.claim('stuck', {payload.NAME}, 1, 43200)"
            yield PARK
            return
        calls = count // 100
        numbered = f"""
            (SELECT i, (last_value - {calls} + i / 100) * 1024 + i % 100 AS seq
               FROM (SELECT last_value, generate_series(0, {count - 1}) AS i FROM outbox.arrival) AS _) AS numbered"""
        yield f"SELECT setval('outbox.arrival', nextval('outbox.arrival') + {calls})"
        yield f"""
            INSERT INTO outbox.envelope (seq, id, occurred_at, available_at, topic, type, payload)
            SELECT seq, ('01900000-0000-7000-8000-' || lpad(to_hex(seq), 12, '0'))::uuid, clock_timestamp(),
                   {"'2100-01-01'" if name == "delayed" else "NULL"}, {payload.NAME}, '{payload.TYPE}', $p${payload.one()}$p$
              FROM {numbered}"""
        if name == "retained":
            yield f"""
                INSERT INTO outbox.receipt (first, last, delivered_at, attempts, lease_owner)
                SELECT min(seq), max(seq), clock_timestamp(), 1, 'worker' FROM {numbered} GROUP BY i / 100"""
        else:
            yield f"""
                INSERT INTO outbox.delivery (seq, topic, place, attempts, lease, lease_owner, leased_until, available_at)
                SELECT seq, {payload.NAME}, {DELIVERIES[name]} FROM {numbered}"""


# Claims until all that they meet is parked.
PARK = f"""
    DO $$ BEGIN
        WHILE EXISTS (SELECT FROM outbox.delivery WHERE place = 'r' AND lease IS NULL) LOOP
            PERFORM outbox.claim('worker', {payload.NAME});
        END LOOP;
    END $$"""

# What the columns of a delivery have in each state: place, attempts, lease, lease_owner, leased_until, available_at.
DELIVERIES = {
    "backlog": "'r', 0, NULL, NULL, NULL, NULL",
    "delayed": "'w', 0, NULL, NULL, NULL, '2100-01-01'",
    "leased": "'r', 1, 4711, 'worker', '2100-01-01', NULL",
    "expired": "'r', 1, 4711, 'worker', clock_timestamp() - interval '1 second', NULL",
}


class Keyed(Outbox):
    """The same with one of so many keys on every message; with none, the same statements without a key."""

    def __init__(self, keys):
        self.key = f"'customer-' || (i % {keys})" if keys else "NULL::text"
        self.keys = keys
        key = self.key.replace("i ", ":i ")
        self.append = f"""\\set i random(1, 1000000)
            SELECT outbox.append('{payload.TOPIC}', '{payload.TYPE}', :payload::jsonb, key => {key});\n""".replace("\n            ", "\n")

    def run_append_many(self, arena, database, count, seconds, sync, size=300):
        message = {"type": payload.TYPE, "payload": json.loads(payload.one(size))}
        keys = [f"customer-{i % self.keys}" if self.keys else None for i in range(count)]
        variables = {"json": json.dumps([{**message, "key": key} for key in keys])}
        return pgbench.run(arena, database, self.append_many, 1, seconds=seconds, sync=sync, variables=variables)

    def fill(self, count, size=300, topics=1):
        return f"""
            SELECT count(*) FROM (
                SELECT outbox.append_batch({payload.NAME}, (
                    SELECT jsonb_agg(jsonb_build_object(
                               'type', '{payload.TYPE}', 'payload', $p${payload.one(size)}$p$::jsonb, 'key', {self.key}))
                      FROM generate_series(batch * 100 + 1, batch * 100 + 100) AS i))
                  FROM generate_series(0, {count // 100 - 1}) AS batch) AS appended"""


def version():
    """The version in Cargo.toml and the commit it was built from."""
    number = re.search(r'^version = "(.*)"', (setup.CHECKOUT / "Cargo.toml").read_text(), re.M)[1]
    try:
        commit = setup.output("git", "-C", setup.CHECKOUT, "rev-parse", "--short", "HEAD")
    except Exception:  # an archive without git
        return number
    return f"{number} ({commit})"
