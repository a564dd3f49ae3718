"""The PostgreSQL extension outbox from Python, on psycopg 3."""

from outbox_client.messages import Message, NewMessage, append, append_batch, consume_once
from outbox_client.worker import Counts, Hooks, drain_once, run_worker

__all__ = [
    "Counts", "Hooks", "Message", "NewMessage", "append", "append_batch", "consume_once", "drain_once", "run_worker",
]  # fmt: skip
