"""What the messages carry: an order as JSON, padded to the size asked for. It compresses to about a half."""

import json
from hashlib import md5

TOPIC = "bench"
NAME = f"'{TOPIC}'"  # in SQL
TYPE = "evt.bench.placed.v1"


def one(size=300, **extra):
    body = {
        **extra,
        "order": "0190a6f0-0000-7000-8000-000000000001",
        "customer": {"id": 4711, "name": "Ada Lovelace", "country": "GB"},
        "currency": "EUR",
        "total": 129.9,
        "items": [],
        "note": "",
    }
    left = size - len(json.dumps(body))
    while left > 120:
        code = md5(str(len(body["items"])).encode()).hexdigest()
        item = {"sku": code, "quantity": int(code[0], 16) + 1, "price": int(code[:4], 16) / 100}
        body["items"].append(item)
        left -= len(json.dumps(item)) + 2
    body["note"] = "." * max(0, left)
    return json.dumps(body)


def messages(count, size=300):
    """The array that append_batch takes."""
    message = {"type": TYPE, "payload": json.loads(one(size))}
    return json.dumps([message] * count)


def array(count, size=300):
    """The literal of a jsonb[] or json[] of as many payloads."""
    element = one(size).replace("\\", "\\\\").replace('"', '\\"')
    return "{" + ",".join([f'"{element}"'] * count) + "}"


def named(size):
    return f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size // 1000} kB" if size >= 1000 else f"{size} B"
