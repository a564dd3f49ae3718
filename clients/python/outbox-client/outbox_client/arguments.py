"""What the double refuses, as the extension does."""

from __future__ import annotations

import json
import re
import secrets
import time
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

PAYLOAD_BYTES = 16 * 1024 * 1024
ERROR_BYTES = 8192
MANY = 10_000
DEEPEST = 6_000  # levels of a JSON, as the server's stack allows
PARSED = 400  # levels; what is deeper is taken as it is
NIL = UUID(int=0)
ISO = re.compile(r"[+-]?\d{4,6}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?([Zz]|[+-]\d\d(:?\d\d)?)$")
FIELDS = {"type", "payload", "id", "available_at", "key", "headers"}


class OutboxError(Exception):
    """As the server would raise it."""

    def __init__(self, sqlstate: str, message: str):
        super().__init__(message)
        self.sqlstate = sqlstate


def required(argument: str, value: Any) -> Any:
    if value is None:
        raise OutboxError("22004", f"{argument} must not be NULL")
    return value


def name(argument: str, value: Any) -> str:
    if "\0" in required(argument, value):
        raise OutboxError("22021", f"{argument} has a zero byte")
    if not value.strip() or len(value.encode()) > 255 or any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in value):
        raise OutboxError("22023", f"{argument} is blank, too long or has control characters")
    return value


def within(argument: str, value: Any, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise OutboxError("22023", f"{argument} must be between {least} and {most}")


def uuid_of(argument: str, value: Any, nil: bool = False) -> UUID:
    required(argument, value)
    try:
        value = UUID(str(value))
    except ValueError:
        raise OutboxError("22P02", f"{argument} is no uuid") from None
    if value == NIL and not nil:
        raise OutboxError("22023", f"{argument} must not be the nil uuid")
    return value


def moment(argument: str, value: Any) -> datetime | None:
    if isinstance(value, str):
        if value.strip().lower() in ("infinity", "-infinity"):
            raise OutboxError("22023", f"{argument} must be finite")
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            raise OutboxError("22007", f"{argument} is no time") from None
    return value.replace(tzinfo=timezone.utc) if value is not None and value.tzinfo is None else value


def json_of(argument: str, text: str) -> Any:
    def constant(literal: str) -> Any:
        raise ValueError(literal)

    deepest = depth(text)
    if deepest > DEEPEST:
        raise OutboxError("54001", f"{argument} is too deep")
    if deepest > PARSED:
        return None
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=constant)
        dumps(value).encode()  # half a pair of surrogates is no character
        return value
    except (ValueError, RecursionError):
        raise OutboxError("22P02", f"{argument} is no JSON") from None


def depth(text: str) -> int:
    levels = [0]
    for bracket in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        if bracket in "[{]}":
            levels.append(levels[-1] + (1 if bracket in "[{" else -1))
    return max(levels)


def sized(argument: str, text: Any) -> str:
    required(argument, text)
    json_of(argument, text)
    if "\\u0000" in text.replace("\\\\", ""):
        raise OutboxError("22P05", f"{argument} has a zero character")
    if len(text.encode()) > PAYLOAD_BYTES:
        raise OutboxError("54000", f"{argument} is too large")
    return text


def element_of(element: Any) -> tuple[Any, ...]:
    """The arguments of an append, from an element of a batch."""
    required("an element", element)
    if not isinstance(element, dict) or set(element) - FIELDS:
        raise OutboxError("22023", "each message is an object of type, payload, id, available_at, key and headers")
    for field in ("type", "id", "available_at", "key"):
        if not isinstance(element.get(field, ""), (str, type(None))):
            raise OutboxError("22023", f"{field} must be a string")
    required("type", element.get("type"))
    if "payload" not in element:
        raise OutboxError("22004", "payload must not be NULL")
    due = element.get("available_at")
    if due is not None and not ISO.match(due):
        raise OutboxError("22023", "available_at must be ISO 8601 with an offset")
    try:
        due = moment("available_at", due)
    except OutboxError:
        raise OutboxError("22023", "available_at must be ISO 8601 with an offset") from None
    headers = None if element.get("headers") is None else dumps(element["headers"])
    return element["type"], dumps(element["payload"]), element.get("id"), due, element.get("key"), headers


def dumps(value: Any) -> str:
    """JSON in which decimals keep their digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(field, ensure_ascii=False)}: {dumps(one)}" for field, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumps, value)) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def cut(error: str | None) -> str | None:
    return None if error is None else error.encode()[:ERROR_BYTES].decode(errors="ignore")


def uuid7() -> UUID:
    """As the server makes them: in the order of time."""
    return UUID(int=(time.time_ns() // 1_000_000 << 80) | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62))
