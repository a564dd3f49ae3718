"""outbox, through the functions of its contract. Only what would take hours by calls is filled in by SQL."""

import re

import payload
import setup
from systems.system import System


class Outbox(System):
    name = "outbox"
    title = "outbox"
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

    def claim(self, count, any_topic=False):
        topic = "NULL" if any_topic else f"'{payload.TOPIC}'"
        if count == 1:
            return f"SELECT max(token::text) AS ids FROM outbox.claim('worker', {topic}, 1) \\gset\n"
        return f"SELECT coalesce(array_agg(token), '{{}}') AS ids FROM outbox.claim('worker', {topic}, {count}) \\gset\n"

    def complete(self, count):
        if count == 1:
            return "SELECT outbox.complete(:ids::uuid);\n"
        return "SELECT count(*) FROM outbox.complete_batch(:ids::uuid[]);\n"

    def fill(self, count, size=300, topics=1):
        batch = max(1, min(100, count // topics))
        return appended(count // batch, batch, size, topics)

    def state(self, name, count):
        if name == "delayed":
            yield appended(count // 100, 100, available_at="2100-01-01T00:00:00Z")
            return
        yield appended(count // 100, 100)
        if name == "retained":
            yield """
                WITH over AS (DELETE FROM outbox.delivery RETURNING seq)
                INSERT INTO outbox.receipt (seq, delivered_at, attempts, lease_owner)
                SELECT seq, clock_timestamp(), 1, 'worker' FROM over"""
        if name in ("leased", "expired"):
            yield f"""
                SELECT count(*) FROM (SELECT outbox.claim('worker', '{payload.TOPIC}', 500, 43200)
                                        FROM generate_series(1, {count // 500})) AS claimed"""
        if name == "expired":
            yield "UPDATE outbox.delivery SET leased_until = clock_timestamp() - interval '1 second'"


def appended(calls, batch, size=300, topics=1, available_at=None):
    due = f", 'available_at', '{available_at}'" if available_at else ""
    topic = f"'{payload.TOPIC}'" if topics == 1 else f"'{payload.TOPIC}' || i % {topics}"
    return f"""
        SELECT count(*) FROM (
            SELECT outbox.append_batch({topic}, messages)
              FROM (SELECT jsonb_agg(jsonb_build_object('type', '{payload.TYPE}', 'payload', $p${payload.one(size)}$p$::jsonb{due}))
                      FROM generate_series(1, {batch})) AS m (messages),
                   generate_series(1, {calls}) AS i) AS appended"""


def version():
    """The version in Cargo.toml and the commit it was built from."""
    number = re.search(r'^version = "(.*)"', (setup.CHECKOUT / "Cargo.toml").read_text(), re.M)[1]
    try:
        commit = setup.output("git", "-C", setup.CHECKOUT, "rev-parse", "--short", "HEAD")
    except Exception:  # an archive without git
        return number
    return f"{number} ({commit})"
