#!/usr/bin/env python3
"""The consumer: takes batches of messages over HTTP and makes out one invoice for each message.

It applies its effect with `outbox.consume_once`: marker and invoice are in one transaction, so a
message that is delivered twice is invoiced once. That also makes it safe to repeat the
transaction when the database went away during its COMMIT.

Its journal has a line for every batch that was delivered, written before the answer is sent.

`--hold python-1:before:3` never answers the third batch of worker python-1, and has applied
nothing; `after` has applied everything. So the demo can kill a worker at just that moment.
"""

import argparse
import contextlib
import json
import queue
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import events
import journal
import psycopg
from process import end_with_parent

INVOICE = """INSERT INTO billing.invoice (message_id, event, customer)
             SELECT id, event, customer
               FROM unnest(%s::uuid[], %s::text[], %s::text[]) AS message (id, event, customer)
              WHERE outbox.consume_once('billing', id)"""
GIVE_UP = 60  # seconds without a database
FOREVER = 300  # how long a batch is held; the worker is killed long before


class Consumer:
    def __init__(self, options):
        self.journal = journal.Writer(options.journal)
        self.originals = [payload for _, payload in events.load(options.events)]
        self.holds = dict(options.hold)
        self.batches = Counter()
        self.connections = queue.LifoQueue()

    def receive(self, owner, messages):
        """Returns the problems by message id, or None if there shall be no answer."""
        self.batches[owner] += 1
        when, number = self.holds.get(owner, (None, 0))
        held = when if self.batches[owner] == number else None
        problems, invoices = {}, []
        for message in sorted(messages, key=lambda message: message["id"]):  # one order: no deadlock
            try:
                invoices.append((message["id"], message["type"], message["payload"]["sender"]["login"]))
            except KeyError:
                problems[message["id"]] = "the payload has no sender: nobody to send the invoice to"
        if held != "before":
            self.apply(invoices)
        self.note(owner, messages, problems, held)
        if held:
            time.sleep(FOREVER)
            return None
        return problems

    def apply(self, invoices):
        columns = [list(column) for column in zip(*invoices)]
        tired = time.monotonic() + GIVE_UP
        while invoices:
            try:
                with self.connection() as connection, connection.transaction():
                    connection.execute(INVOICE, columns)
                return
            except psycopg.OperationalError:
                if time.monotonic() > tired:
                    raise
                time.sleep(0.2)

    @contextlib.contextmanager
    def connection(self):
        """One from the pool, which goes back there only if all went well."""
        try:
            connection = self.connections.get_nowait()
        except queue.Empty:
            connection = psycopg.connect(autocommit=True)
        yield connection
        self.connections.put(connection)

    def note(self, owner, messages, problems, held):
        lines = [
            [m["id"], m["attempts"], m["leased_until"], problems.get(m["id"]), self.is_intact(m, problems)]
            for m in messages
        ]
        self.journal.write({"at": time.time(), "owner": owner, "held": held, "messages": lines})

    def is_intact(self, message, problems):
        """Is the payload what the shop sent? Its headers say which event that was."""
        if message["id"] in problems:
            return message["payload"] == {}
        return message["payload"] == self.originals[int(message["headers"]["example"])]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        problems = self.server.consumer.receive(self.headers["outbox-owner"], json.loads(body))
        if problems is None:
            return
        answer = json.dumps(problems).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, *_):
        pass  # the journal says more


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self):
        super().server_bind()
        print(f"http://127.0.0.1:{self.server_port}/", flush=True)


def hold(text):
    owner, when, number = text.split(":")
    return owner, (when, int(number))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--journal", required=True)
    parser.add_argument("--events", required=True)
    parser.add_argument("--hold", type=hold, action="append", default=[])
    options = parser.parse_args()
    end_with_parent()
    with Server(("127.0.0.1", 0), Handler) as server:
        server.consumer = Consumer(options)
        server.serve_forever()


if __name__ == "__main__":
    main()
