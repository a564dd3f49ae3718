"""Errors say what they have to say to users, whatever the server's environment asks Rust for."""

import psycopg
import pytest
from conftest import TOKEN, append, rows, value
from server import Server


class Backtracing(Server):
    @property
    def env(self):
        return {**super().env, "RUST_BACKTRACE": "full"}


@pytest.fixture(scope="module", params=["", "outbox"], ids=["loaded later", "preloaded"])
def server(request):
    with Backtracing(conf={"shared_preload_libraries": request.param}) as server:
        yield server


def failure(db, function, *arguments):
    with pytest.raises(psycopg.Error) as raised:
        rows(db, function, *arguments)
    return raised.value.diag


def test_no_backtrace_is_a_detail(db):
    own = failure(db, "append", None, "t", "1")
    assert own.message_detail is None and own.message_primary == "topic must not be null"
    cores = failure(db, "append_batch", "t", '[{"type": "t", "payload": 1, "id": "x"}]')
    assert cores.sqlstate == "22P02" and cores.message_detail is None
    db.execute("ALTER TABLE outbox.topic ADD CONSTRAINT topic_is_short CHECK (length(topic) < 5)")
    passed = failure(db, "pause", "long topic")
    assert passed.constraint_name == "topic_is_short" and passed.message_detail.startswith("Failing row contains")
    assert "backtrace" not in passed.message_detail and "\n" not in passed.message_detail
    db.execute("SELECT pg_catalog.set_config('statement_timeout', '300ms', false)")
    cancelled = failure(db, "claim", "w", None, None, None, 60)
    assert cancelled.sqlstate == "57014" and cancelled.message_detail is None


def test_a_replica_is_told_where_writes_belong(db):
    db.execute("SET default_transaction_read_only = on")
    refused = failure(db, "complete", TOKEN)
    assert refused.sqlstate == "25006" and "primary" in refused.message_hint


def test_it_is_still_usable(db):
    message = append(db)
    for _ in range(3):
        failure(db, "append", None, "t", "1")
    assert value(db, "append", "orders", "placed", "1", message) == message
