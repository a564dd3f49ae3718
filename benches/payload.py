"""What the messages carry: an order as JSON, padded to the size asked for."""

import json

TOPIC = "bench"
TYPE = "evt.bench.placed.v1"


def one(size=300, **extra):
    body = {
        **extra,
        "order": "0190a6f0-0000-7000-8000-000000000001",
        "customer": {"id": 4711, "name": "Ada Lovelace", "country": "GB"},
        "currency": "EUR",
        "total": 129.9,
        "items": [],
    }
    while len(json.dumps(body)) < size - 90:
        body["items"].append({"sku": f"A-{len(body['items']):04}", "quantity": 2, "price": 9.95})
    body["note"] = ""
    body["note"] = "." * max(0, size - len(json.dumps(body)))
    return json.dumps(body)


def messages(count, size=300):
    """The array that append_batch takes."""
    message = {"type": TYPE, "payload": json.loads(one(size))}
    return json.dumps([message] * count)


def array(count, size=300):
    """The literal of a jsonb[] or json[] of as many payloads."""
    element = one(size).replace("\\", "\\\\").replace('"', '\\"')
    return "{" + ",".join([f'"{element}"'] * count) + "}"
