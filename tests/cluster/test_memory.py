"""Where memory is short, a statement ends with an error, not the server."""

import resource

import psycopg
import pytest
from conftest import one
from server import Server


@pytest.fixture
def db():
    """In a server whose processes can have 860 MB each."""
    with Server() as server:
        server.stop()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (860 * 2**20, before[1]))
        try:
            server.start()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        server.createdb("small", extension="outbox")
        with server.connect("small", autocommit=True) as connection:
            yield connection


def test_an_array_that_is_too_long_is_not_taken_apart(db):
    tokens = "array_fill('00000000-0000-8001-8000-000000000001'::uuid, ARRAY[20000000])"
    with pytest.raises(psycopg.Error) as raised:
        db.execute(f"SELECT count(*) FROM outbox.complete_batch({tokens})")
    assert raised.value.sqlstate == "54000"
    assert one(db, "SELECT 1") == 1
