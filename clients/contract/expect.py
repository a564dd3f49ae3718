"""Does an answer fit what a step expects?"""

import datetime
import json
import re
import sys
from decimal import Decimal

sys.setrecursionlimit(20_000)  # payloads are compared as trees


class Failure(Exception):
    """A step did not end as the case says."""


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def parse_time(text):
    """A timestamptz as a driver or PostgreSQL writes it."""
    found = re.fullmatch(r"(\d{4,})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|[+-]\d\d(?::?\d\d)?)", text)
    if not found:
        raise Failure(f"{text!r} is no time")
    *parts, fraction, zone = found.groups()
    hours, minutes = (0, 0) if zone == "Z" else (int(zone[:3]), int(zone[0] + (zone[3:].strip(":") or "0")))
    offset = datetime.timezone(datetime.timedelta(hours=hours, minutes=minutes))
    microseconds = int((fraction or "").ljust(6, "0")[:6])
    return datetime.datetime(*(int(part or 0) for part in parts), microseconds, offset)


def tree(text):
    """A JSON text by value: numbers exact, the order of keys forgotten."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def same(type, expected, actual):
    if actual is None:
        return expected is None
    if type == "boolean" or isinstance(expected, bool):
        return str(actual).lower() in (("true", "t", "1") if expected else ("false", "f", "0", ""))
    if type in ("integer", "bigint") or isinstance(expected, int):
        return re.fullmatch(r"-?\d+", str(actual)) is not None and int(actual) == expected
    if type == "jsonb" and expected is not None:
        return isinstance(actual, str) and tree(actual) == tree(expected)
    if type == "uuid":
        return str(actual) == expected
    return actual == expected


def matches(type, expected, actual):
    if not isinstance(expected, dict):
        return same(type, expected, actual)
    ((kind, wanted),) = expected.items()
    if kind == "maybe":  # NULL where the server has no memory left to count with
        return actual is None or same(type, wanted, actual)
    if kind == "seconds":
        left = (parse_time(actual) - now()).total_seconds()
        return wanted[0] <= left <= wanted[1]
    if kind == "time":
        return parse_time(actual) == parse_time(wanted)
    if kind == "not":
        return actual != wanted
    if kind == "match":
        return re.search(wanted, actual) is not None
    if wanted == "void":
        return not actual
    if wanted == "any":
        return actual is not None
    digit = "7" if wanted == "uuid7" else "[0-9]"
    return re.fullmatch(rf"[0-9a-f]{{8}}-[0-9a-f]{{4}}-{digit}[0-9a-f]{{3}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}", str(actual)) is not None


def short(value):
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 300 else text[:300] + "…"


def check(step, answer, names, functions):
    """Does the answer fit the step? Saves what the step wants to keep. Returns whether the driver itself refused."""
    error = answer.get("error")
    wanted = step.get("error")
    if wanted:
        refused = error == "client" and step.get("refusable", False)
        if error != wanted and not refused:
            raise Failure(f"expected {wanted}, got {short(answer)}")
        return refused
    if error:
        raise Failure(f"{error}: {answer.get('message')}")
    if "together" in step:
        if len(answer["results"]) != len(step["together"]):
            raise Failure(f"{len(answer['results'])} results of {len(step['together'])} statements")
        for inner, result in zip(step["together"], answer["results"]):
            check(inner, result, names, functions)
        return False
    columns, rows = answer.get("columns", []), answer.get("rows", [])
    types = dict(functions[step["call"]]["returns"]) if "call" in step else {}
    if "columns" in step and columns != step["columns"]:
        raise Failure(f"columns {columns}")
    if "count" in step and len(rows) != step["count"]:
        raise Failure(f"{len(rows)} rows, expected {step['count']}")
    expected = step.get("rows")
    if "value" in step:
        expected = [{name: step["value"] for name in types}]
    if expected is not None:
        if len(rows) != len(expected):
            raise Failure(f"{len(rows)} rows, expected {len(expected)}: {short(rows)}")
        for want, row in zip(expected, rows):
            pairs = want.items() if isinstance(want, dict) else zip(columns, want)
            have = dict(zip(columns, row))
            for column, value in pairs:
                if not matches(types.get(column), value, have[column]):
                    raise Failure(f"{column} is {short(have[column])}, expected {short(value)}")
    for name, place in step.get("save", {}).items():
        column, index = place if isinstance(place, list) else (place, 0)
        at = columns.index(column)
        names[name] = [row[at] for row in rows] if index == "*" else rows[index][at]
    return False
