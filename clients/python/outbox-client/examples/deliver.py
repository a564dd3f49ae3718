"""A worker that prints each delivery. A payload {"sleep": 0.5} takes that long; {"fail": true} fails."""

import signal
import sys
import threading
import time

from outbox_client import Message, drain_once, run_worker


def deliver(message: Message) -> None:
    payload = message.json()
    what = f"{payload['n']} {message.key or '-'} {message.token}"
    print(f"start {what}\n", end="", flush=True)
    time.sleep(payload.get("sleep", 0))
    if payload.get("fail"):
        raise ValueError("as told")
    print(f"end {what}\n", end="", flush=True)


stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
options = {"owner": "python", "topic": "t", "lease_seconds": 2}
if sys.argv[2:]:
    counts = drain_once(sys.argv[1], deliver, **options)
else:
    counts = run_worker(sys.argv[1], deliver, stop=stop, **options)
print("Counts { " + ", ".join(f"{name}: {count}" for name, count in vars(counts).items()) + " }")
