#!/usr/bin/env python3
"""Reference worker: claims messages from `outbox`, delivers them, answers for each. Copy it.

    pip install -r requirements.txt
    PGHOST=… PGDATABASE=… python3 worker.py --owner mailer-1 --topic orders --url http://…/

* `claim` waits inside the server until there is work, so an idle worker costs nothing.
* `deliver` is the part to replace. Here it posts the whole batch to a URL as one JSON array; the
  answer is an object {message id: why it was not accepted}, so {} when all is well.
* What was accepted is completed in one call; what was not fails with its error text and comes
  back later, or is dead after the last attempt.
* While a delivery runs, its leases are extended, so slow work is not given to somebody else.
* SIGTERM: finish what is being delivered, release what is not, exit 0.
* A lost connection is opened again. An answer that could not be given is no harm: the lease runs
  out and the message is delivered again, which is why a consumer needs `consume_once`.
"""

import argparse
import json
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
from psycopg.rows import namedtuple_row

# The server writes each message as JSON, so that a payload leaves as it was stored: parsing and
# printing it here would round long numbers. For single columns: SELECT id, token, payload, …
CLAIM = """SELECT id, token, row_to_json(message)::text AS body
             FROM outbox.claim(owner => %(owner)s, topic => %(topic)s, batch_size => %(batch_size)s,
                lease_seconds => %(lease_seconds)s, wait_seconds => %(wait_seconds)s) AS message"""
COMPLETE = "SELECT completed FROM outbox.complete_batch(%s)"
FAIL = "SELECT outbox.fail(%s, error => %s)"
EXTEND = "SELECT outbox.extend(token, %s) FROM unnest(%s::uuid[]) AS token"
RELEASE = "SELECT outbox.release(token) FROM unnest(%s::uuid[]) AS token"
GIVE_UP = 60  # seconds without a database; then whoever supervises us should know


class Worker:
    def __init__(self, options):
        self.options = options
        self.stopping = False
        self.deliveries = ThreadPoolExecutor(max_workers=1)
        self.completed = self.failed = self.released = self.stale = 0

    def stop(self, *_):
        self.stopping = True

    def run(self):
        alive = time.monotonic()
        while not self.stopping:
            try:
                with psycopg.connect(autocommit=True, row_factory=namedtuple_row) as connection:
                    try:
                        while not self.stopping:
                            self.work(connection)
                    finally:
                        alive = time.monotonic()
            except psycopg.OperationalError as error:
                print(f"connection lost: {error}", file=sys.stderr)
                if time.monotonic() - alive > GIVE_UP:
                    raise
                time.sleep(0.5)

    def work(self, connection):
        messages = connection.execute(CLAIM, vars(self.options)).fetchall()
        tokens = [message.token for message in messages]
        if self.stopping:
            connection.execute(RELEASE, [tokens])
            self.released += len(tokens)
        elif messages:
            delivery = self.deliveries.submit(self.deliver, messages)
            while wait([delivery], timeout=self.options.lease_seconds / 3).not_done:
                connection.execute(EXTEND, [self.options.lease_seconds, tokens])
            self.answer(connection, messages, delivery)

    def answer(self, connection, messages, delivery):
        error = delivery.exception()
        if error:
            problems = dict.fromkeys((str(message.id) for message in messages), str(error))
        else:
            problems = delivery.result()
        good = [message.token for message in messages if str(message.id) not in problems]
        answers = connection.execute(COMPLETE, [good]).fetchall()
        self.completed += len(good)
        self.stale += sum(not answer.completed for answer in answers)
        for message in messages:
            if str(message.id) in problems:
                connection.execute(FAIL, [message.token, problems[str(message.id)]])
                self.failed += 1

    def deliver(self, messages):
        body = "[" + ",".join(message.body for message in messages) + "]"
        headers = {"content-type": "application/json", "outbox-owner": self.options.owner}
        request = urllib.request.Request(self.options.url, body.encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--owner", required=True, help="name of this worker, for operators")
    parser.add_argument("--topic", help="default: any topic")
    parser.add_argument("--url", required=True, help="where to deliver")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lease-seconds", type=int, default=60)
    parser.add_argument("--wait-seconds", type=int, default=5, help="also how long a stop may take")
    worker = Worker(parser.parse_args())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.run()
    counts = ("completed", "failed", "released", "stale")
    print(", ".join(f"{count} {getattr(worker, count)}" for count in counts))


if __name__ == "__main__":
    main()
