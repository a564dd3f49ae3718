"""Looks at a load from outside: what can be claimed and is not, what sleeps and holds others up.

What can be claimed is told from the committed rows alone: due, under no running lease, attempts left, its topic not paused,
nothing before it in its key. A row that an open or prepared transaction has locked, or whose key has such a row, is left out:
what somebody else is doing is his. The rest must not stay for longer than the contract allows while a worker asks for it.
"""

import os
import threading
import time
from pathlib import Path

import psycopg

LIMIT = 3.0  # seconds within which a claim that asks must get what can be claimed
SLACK = 1.5  # of a busy machine, and of a look
PERIOD = 0.3

CAN_BE_CLAIMED = """
    WITH locked AS MATERIALIZED (
        SELECT l.locked_row, d.topic, d.key FROM pgrowlocks('outbox.delivery') AS l LEFT JOIN outbox.delivery AS d ON d.ctid = l.locked_row),
    alive AS MATERIALIZED (
        SELECT d.*, d.ctid AS at, coalesce(t.paused, false) AS paused,
               d.place = 'x' AS dead, coalesce(t.block_on_dead, false) AS dead_block,
               d.attempts >= coalesce(t.max_attempts, %(limit)s) AS used_up,
               coalesce(d.leased_until > clock_timestamp(), false) AS leased,
               d.place = 'w' AND d.available_at > clock_timestamp() AS waiting
          FROM outbox.delivery AS d LEFT JOIN outbox.topic AS t USING (topic))
    SELECT m.seq, m.attempts, m.topic, m.key, m.place::text
      FROM alive AS m
     WHERE NOT (m.dead OR m.paused OR m.used_up OR m.leased OR m.waiting)
       AND m.at NOT IN (SELECT locked_row FROM locked)
       AND NOT EXISTS (SELECT FROM alive AS o
                        WHERE o.topic = m.topic AND o.key = m.key AND o.seq < m.seq
                          AND (o.dead_block OR NOT (o.dead OR o.used_up AND NOT o.leased)))
       AND NOT EXISTS (SELECT FROM locked AS l WHERE l.topic = m.topic AND l.key = m.key)"""
SLEEPERS_ROWS = """
    SELECT a.application_name, a.query, count(*)
      FROM pg_stat_activity AS a
      JOIN (SELECT unnest(pids) AS pid FROM pgrowlocks('outbox.delivery')) AS l USING (pid)
     WHERE a.application_name LIKE 'worker-%' AND a.wait_event_type = 'Extension'
     GROUP BY 1, 2"""
HELD_UP = """
    SELECT w.application_name, w.query, b.application_name, b.query
      FROM pg_stat_activity AS w, unnest(pg_blocking_pids(w.pid)) AS blocker
      JOIN pg_stat_activity AS b ON b.pid = blocker
     WHERE w.wait_event_type = 'Lock' AND w.wait_event IN ('transactionid', 'tuple') AND b.application_name LIKE 'worker-%' AND b.wait_event_type = 'Extension'"""
ROWS = """
    SELECT seq, place::text, attempts, leased_until::text, available_at::text, lease_owner, xmin::text, xmax::text FROM outbox.delivery
     WHERE topic = %s AND (key = %s OR seq = %s) ORDER BY seq"""
MESSAGES = "SELECT id, seq FROM outbox.envelope WHERE topic = %s AND (key = %s OR seq = %s)"


def stories(db, world, seq, topic, key):
    """The rows of a message's key, and what was done with them."""
    yield from map(str, db.execute(ROWS, [topic, key, seq]).fetchall()[:10])
    yield from world.history(dict(db.execute(MESSAGES, [topic, key, seq]).fetchall()))


def cpu(connection):
    """Seconds that its backend has worked; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{connection.info.backend_pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Observer(threading.Thread):
    def __init__(self, world, workers):
        super().__init__(daemon=True, name="observer")
        self.world, self.workers = world, workers
        self.since = {}  # what can be claimed, and since when
        self.before = {}  # what was seen in the look before
        self.told = set()
        self.db = world.connect("observer")
        self.start()

    def run(self):
        try:
            while not self.world.rest.is_set():
                self.stuck()
                self.twice("a claim that sleeps has locked rows", SLEEPERS_ROWS)
                self.twice("a claim that sleeps holds somebody up", HELD_UP)
                time.sleep(PERIOD)
        except psycopg.Error as error:
            self.world.went_wrong("cannot look", error)
        self.db.close()

    def stuck(self):
        from players import LIMIT as attempts

        now = time.monotonic()
        rows = self.db.execute(CAN_BE_CLAIMED, {"limit": attempts}).fetchall()
        self.since = {row: self.since.get(row, now) for row in rows}
        for row, since in self.since.items():
            if now - since > LIMIT + SLACK and row not in self.told and self.somebody_asked(row[2], since + LIMIT):
                self.told.add(row)
                seq, _, topic, key, _ = row
                story = "\n".join([f"not claimed for {now - since:.1f} s: {row}", *stories(self.db, self.world, seq, topic, key)])
                self.world.went_wrong("stuck", story)

    def somebody_asked(self, topic, since):
        """A claim with room for more that began before, or came to nothing after."""
        return any(worker.topic in (None, topic) and worker.had_room_at > since for worker in self.workers)

    def twice(self, what, query):
        """What is seen in two looks one after the other is no moment's."""
        seen = set(self.db.execute(query).fetchall())
        for row in seen & self.before.get(what, set()):
            if (what, row) not in self.told:
                self.told.add((what, row))
                self.world.went_wrong(what, row)
        self.before[what] = seen
