"""A session that waits in a thread of its own, for the tests of waiting."""

import threading
import time
from pathlib import Path

import psycopg
import pytest
from conftest import claim, rows, until

CONF = {"max_connections": 150, "max_prepared_transactions": 4}
SOON = 3  # seconds; far less than the wait, more than any pause of a busy machine
AT_ONCE = 1
PROMPT = 0.5


class Waiter(threading.Thread):
    """A session that waits inside claim(wait_seconds => 30), or inside CALL wait."""

    def __init__(self, server, database, topic=None, prepare=(), call=False, **named):
        super().__init__(daemon=True)
        self.call = call
        self.connection = server.connect(database, autocommit=True)
        for statement in prepare:
            self.connection.execute(statement)
        self.pid = self.connection.info.backend_pid
        self.topic, self.named = topic, {"wait_seconds": 30, **named}
        self.messages = self.error = None
        self.start()
        waits = (
            f"SELECT count(*) FROM pg_stat_activity WHERE pid = {self.pid} AND state = 'active'"
            " AND query LIKE '%wait_seconds%' AND wait_event_type = 'Extension'"
        )
        until(lambda: server.psql(waits) == "1" or not self.is_alive())

    def run(self):
        try:
            if self.call:
                self.messages = rows(self.connection, "wait", self.topic, **self.named)
            else:
                self.messages = claim(self.connection, self.topic, owner="waiter", **self.named)
        except psycopg.Error as error:
            self.error = error
        self.ended = time.monotonic()

    def wakeups(self):
        """How often the session's process has gone to sleep."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    def result(self, since, within=SOON):
        """The messages or the error, which came at most so long after `since`."""
        self.join(timeout=40)
        assert not self.is_alive()
        assert self.ended - since < within
        self.connection.close()
        return self.error if self.error is not None else self.messages


BATCH = '[{"type": "t", "payload": 1}]'


@pytest.fixture
def waiter(server, database):
    return lambda *arguments, **named: Waiter(server, database, *arguments, **named)
