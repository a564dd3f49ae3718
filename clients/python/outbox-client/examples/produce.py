"""Appends, appends a batch, rolls one back, and consumes one message once; prints the ids."""

import sys
from datetime import datetime, timezone

import psycopg
from outbox_client import NewMessage, append, append_batch, consume_once

long = '{"n": 1234567890123456789012345678901234567890}'
message = NewMessage(
    "evt.a.v1", long, key="k", headers={"traceparent": "00-1-2-01"}, available_at=datetime(2020, 1, 1, tzinfo=timezone.utc)
)
plain = NewMessage("evt.b.v1", "[1e400]")
with psycopg.connect(sys.argv[1]) as connection:
    with connection.transaction():
        one = append(connection, "p", message)
        two = append_batch(connection, "p", [message, plain])
    with connection.transaction(force_rollback=True):
        append(connection, "p", plain)
    with connection.transaction():
        first, second = (consume_once(connection, "c", one) for _ in range(2))
print(one, *two, str(first).lower(), str(second).lower())
