"""What producers append and workers deliver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

APPEND = "SELECT outbox.append(%s, %s, %s::jsonb, %s::uuid, %s::timestamptz, %s, %s::jsonb)"
APPEND_BATCH = "SELECT append_batch FROM outbox.append_batch(%s, %s::jsonb)"
CONSUME_ONCE = "SELECT outbox.consume_once(%s, %s::uuid)"


@dataclass(frozen=True)
class NewMessage:
    """`payload` is JSON text, which is stored as it is, or any value that `json.dumps` takes."""

    type: str
    payload: Any
    id: UUID | None = None  # with an id, an append is idempotent while the message is stored
    key: str | None = None
    available_at: datetime | None = None  # with a time zone; None is at once
    headers: dict[str, Any] | None = None


@dataclass(frozen=True)
class Message:
    """One delivery. `payload` is JSON text, so that long numbers arrive as they were stored."""

    id: UUID
    token: UUID
    topic: str
    type: str
    payload: str
    key: str | None
    headers: dict[str, Any] | None
    attempts: int

    def json(self) -> Any:
        return json.loads(self.payload)

    @property
    def traceparent(self) -> str | None:
        """Parent of the delivery's span, as W3C writes it."""
        return (self.headers or {}).get("traceparent")


def append(connection: Any, topic: str, message: NewMessage) -> UUID:
    """Appends in the caller's transaction: the message exists exactly when that transaction commits.

    `connection` is a connection of psycopg or Django, or any cursor.
    """
    due = message.available_at and message.available_at.isoformat()
    headers = None if message.headers is None else json.dumps(message.headers)
    values = [topic, message.type, text(message.payload), message.id, due, message.key, headers]
    return _rows(connection, APPEND, values)[0][0]


def append_batch(connection: Any, topic: str, messages: Iterable[NewMessage]) -> list[UUID]:
    """Appends all or none, in one round trip; the ids are in input order."""
    return [row[0] for row in _rows(connection, APPEND_BATCH, [topic, "[" + ",".join(map(_element, messages)) + "]"])]


def consume_once(connection: Any, consumer: str, message_id: UUID) -> bool:
    """True exactly once per committed (consumer, message): apply the effect in the same transaction."""
    return _rows(connection, CONSUME_ONCE, [consumer, message_id])[0][0]


def text(payload: Any) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload)


def _element(message: NewMessage) -> str:
    due = message.available_at and message.available_at.isoformat()
    fields = {"type": message.type, "id": message.id and str(message.id), "key": message.key, "available_at": due}
    given = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items() if value is not None]
    if message.headers is not None:
        given.append(f'"headers": {json.dumps(message.headers)}')
    # The text itself: to parse and print it would round long numbers.
    return "{" + ", ".join([*given, f'"payload": {text(message.payload)}']) + "}"


def _rows(connection: Any, sql: str, values: list[Any]) -> list[Any]:
    if not hasattr(connection, "cursor"):
        connection.execute(sql, values)
        return connection.fetchall()
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()
