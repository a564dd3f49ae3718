"""What purge costs beside a held snapshot: dead rows stay in the indexes, and a series of calls must not walk over them
again and again.
"""

import json

from conftest import long_ago, one

CONF = {"autovacuum": False}
MESSAGES, BATCH = 20_000, 1_000


def pages(db):
    """How many a call has touched that was to delete a batch."""
    plan = one(db, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT outbox.purge({BATCH})")[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def series(server, database, db, fill):
    with server.connect(database) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM outbox.topic")
        fill()
        long_ago(db)
        db.execute("ANALYZE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed")
        pages(db)
        return [pages(db) for _ in range(MESSAGES // BATCH - 1)]


def test_delivered_ones(server, database, db):
    def fill():
        for n in range(MESSAGES // 500):
            batch = json.dumps([{"type": "t", "payload": n} for _ in range(500)])
            db.execute("SELECT count(*) FROM outbox.append_batch('orders', %s)", [batch])
            db.execute("SELECT count(outbox.complete(token)) FROM outbox.claim('w', batch_size => 500)")

    touched = series(server, database, db, fill)
    assert one(db, "SELECT count(*) FROM outbox.envelope") == 0
    assert max(touched[-3:]) < 1.5 * max(touched[:3]), touched


def test_dead_ones(server, database, db):
    def fill():
        for n in range(MESSAGES // 500):
            batch = json.dumps([{"type": "t", "payload": n} for _ in range(500)])
            db.execute("SELECT count(*) FROM outbox.append_batch('orders', %s)", [batch])
            db.execute("SELECT count(outbox.abandon(token)) FROM outbox.claim('w', batch_size => 500)")

    touched = series(server, database, db, fill)
    assert one(db, "SELECT count(*) FROM outbox.envelope") == 0
    assert max(touched[-3:]) < 1.5 * max(touched[:3]), touched


def test_markers(server, database, db):
    def fill():
        db.execute(
            """INSERT INTO outbox.processed
               SELECT 'mail', gen_random_uuid(), clock_timestamp() + n * interval '1 microsecond'
                 FROM generate_series(1, %s) AS n""",
            [MESSAGES],
        )

    touched = series(server, database, db, fill)
    assert one(db, "SELECT count(*) FROM outbox.processed") == 0
    assert max(touched[-3:]) < 1.5 * max(touched[:3]), touched
