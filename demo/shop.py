#!/usr/bin/env python3
"""The order service: every transaction writes an order and appends messages; one in ten rolls back.

Its journal has a line for every transaction: the order, the messages it appended (`kept`, with
their keys), those a savepoint took back (`undone`), and its fate. When the server dies during a
COMMIT nobody can say what became of it; then the shop looks for its order after the reconnect,
which is what the outbox promises: the messages exist if and only if the order does.
"""

import argparse
import json
import random
import signal
import time
import uuid
from datetime import datetime, timedelta, timezone

import events
import journal
import psycopg
from process import end_with_parent

TOPIC = "orders"
ORDER = "INSERT INTO shop.orders (id, shop, amount) VALUES (%s, %s, %s)"
EXISTS = "SELECT EXISTS (SELECT FROM shop.orders WHERE id = %s)"
APPEND = """SELECT outbox.append(topic => %(topic)s, type => %(type)s, payload => %(payload)s::jsonb,
                id => %(id)s, available_at => %(available_at)s, key => %(key)s,
                headers => %(headers)s::jsonb)::text"""
APPEND_BATCH = "SELECT id::text FROM outbox.append_batch(topic => %s, messages => %s::jsonb) AS id"
GIVE_UP = 60  # seconds without a database


class Shop:
    def __init__(self, options):
        self.options = options
        self.chance = random.Random(options.name)
        self.journal = journal.Writer(options.journal)
        self.events = [(type, json.dumps(payload)) for type, payload in events.load(options.events)]
        self.committed = 0
        self.owes_unreadable = options.unreadable
        self.unknown = None  # the transaction that was committing when the server died
        self.stopping = False

    def stop(self, *_):
        self.stopping = True

    def is_done(self):
        enough = self.options.messages and self.committed >= self.options.messages
        return (self.stopping or enough) and not self.unknown

    def run(self):
        alive = time.monotonic()
        while not self.is_done():
            try:
                with psycopg.connect() as connection:
                    self.find_out(connection)
                    while not self.is_done():
                        self.transaction(connection)
                        alive = time.monotonic()
            except psycopg.OperationalError:
                if time.monotonic() - alive > GIVE_UP:
                    raise
                time.sleep(0.2)

    def find_out(self, connection):
        if self.unknown:
            (found,) = connection.execute(EXISTS, [self.unknown["order"]]).fetchone()
            connection.rollback()
            self.note(self.unknown, "committed" if found else "rolled back", found_out=True)
            self.unknown = None

    def note(self, record, fate, found_out=False):
        self.journal.write({**record, "fate": fate, "found_out": found_out, "at": time.time()})
        if fate == "committed":
            self.committed += len(record["kept"])
            self.owes_unreadable = self.owes_unreadable and not record["unreadable"]

    def transaction(self, connection):
        record = {"order": str(uuid.uuid4()), "kept": [], "undone": [], "unreadable": None}
        fate = "rolled back"
        try:
            amount = self.chance.randrange(100, 100_000) / 100
            connection.execute(ORDER, [record["order"], self.options.name, amount])
            self.append(connection, record)
            if self.some(0.1):
                connection.rollback()
            else:
                fate = "unknown"
                connection.commit()
                fate = "committed"
        finally:
            if fate == "unknown":
                self.unknown = record
            else:
                self.note(record, fate)

    def append(self, connection, record):
        """One message, five in a batch, or one and another that a savepoint takes back."""
        if self.owes_unreadable and self.committed >= 20:
            draft = {**self.draft(), "type": "evt.shop.unreadable.v1", "payload": "{}", "key": None}
            (record["unreadable"],) = self.one(connection, draft)
            record["kept"].append([record["unreadable"], None])
            return
        drafts = [self.draft() for _ in range(5 if self.some(0.2) else 1)]
        ids = (self.one if len(drafts) == 1 else self.batch)(connection, *drafts)
        record["kept"] += [[id, draft["key"]] for id, draft in zip(ids, drafts)]
        if self.some(0.1):
            with connection.transaction(force_rollback=True):
                record["undone"] += self.one(connection, self.draft())

    def one(self, connection, draft):
        return connection.execute(APPEND, draft).fetchone()

    def batch(self, connection, *drafts):
        messages = "[" + ",".join(map(as_json, drafts)) + "]"
        return [id for (id,) in connection.execute(APPEND_BATCH, [TOPIC, messages])]

    def draft(self):
        """An event; some with an id of ours, some not due yet, some with a key, some traced."""
        number = self.chance.randrange(len(self.events))
        type, payload = self.events[number]
        due = datetime.now(timezone.utc) + timedelta(seconds=1 + self.chance.random())
        customer = f"{self.options.name}-customer-{self.chance.randrange(200)}"
        headers = {"example": str(number)}
        if self.some(0.3):
            trace, span = self.chance.getrandbits(128), self.chance.getrandbits(64)
            headers["traceparent"] = f"00-{trace:032x}-{span:016x}-01"
        return {
            "topic": TOPIC,
            "type": type,
            "payload": payload,
            "id": str(uuid.uuid4()) if self.some(0.2) else None,
            "available_at": due.isoformat() if self.some(0.03) else None,
            "key": customer if self.some(0.3) else None,
            "headers": json.dumps(headers),
        }

    def some(self, share):
        return self.chance.random() < share


def as_json(draft):
    """One element of append_batch's array; the payload is JSON already."""
    rest = {name: draft[name] for name in ("type", "id", "available_at", "key")}
    return f'{json.dumps(rest)[:-1]}, "headers": {draft["headers"]}, "payload": {draft["payload"]}}}'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--events", required=True)
    parser.add_argument("--messages", type=int, default=0, help="0: until SIGTERM")
    parser.add_argument("--unreadable", action="store_true", help="send one message that always fails")
    shop = Shop(parser.parse_args())
    signal.signal(signal.SIGTERM, shop.stop)
    end_with_parent()
    shop.run()


if __name__ == "__main__":
    main()
