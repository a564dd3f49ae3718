"""docs/debezium.md: its SQL runs, and a subscriber to its publication gets every appended message once, as an INSERT with the
columns that the event router is told of; and nothing of a message's further life.
"""

import json
import re
import struct
from pathlib import Path

import psycopg
import pytest
from conftest import append, claim, long_ago, one, rows, value

CONF = {"wal_level": "logical"}
DOCS = (Path(__file__).resolve().parents[2] / "docs" / "debezium.md").read_text()
SQL = re.findall(r"^```sql\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
PROPERTIES = dict(
    line.split("=", 1)
    for line in re.search(r"^```properties\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)[1].splitlines() if line
)
CHANGES = "SELECT data FROM pg_logical_slot_get_binary_changes('subscriber', NULL, NULL, 'proto_version', '1', 'publication_names', %s)"


class Reader:
    """Reads a message of the protocol of logical replication."""

    def __init__(self, data):
        self.data, self.place = bytes(data), 0

    def take(self, form):
        values = struct.unpack_from("!" + form, self.data, self.place)
        self.place += struct.calcsize("!" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        end = self.data.index(0, self.place)
        text, self.place = self.data[self.place:end].decode(), end + 1
        return text

    def columns(self):
        """Of a relation: after id, namespace, name and replica identity."""
        return [(self.take("b"), self.text(), self.take("Ii"))[1] for _ in range(self.take("h"))]

    def value(self):
        kind = self.take("c")
        if kind != b"t":
            return None
        length = self.take("i")
        self.place += length
        return self.data[self.place - length:self.place].decode()


def changes(db):
    """(kinds of messages but begin and commit, inserted rows)"""
    kinds, found, columns = [], [], {}
    for (data,) in db.execute(CHANGES, [PROPERTIES["publication.name"]], binary=True):
        reader = Reader(data)
        kind = reader.take("c").decode()
        if kind == "R":
            relation, schema, name = reader.take("I"), reader.text(), reader.text()
            reader.take("c")
            columns[relation] = (f"{schema}.{name}", reader.columns())
        elif kind == "I":
            table, names = columns[reader.take("I")]
            assert (table, reader.take("c")) == (PROPERTIES["table.include.list"], b"N")
            found.append(dict(zip(names, (reader.value() for _ in range(reader.take("h"))))))
        if kind not in "BC":
            kinds.append(kind)
    return kinds, found


@pytest.fixture
def published(server, database, db):
    db.execute(SQL[0])
    db.execute("SELECT pg_create_logical_replication_slot('subscriber', 'pgoutput')")
    yield db
    db.execute("SELECT pg_drop_replication_slot('subscriber')")
    db.execute("DROP OWNED BY debezium; DROP ROLE debezium")


def test_a_subscriber_gets_what_the_router_is_told_of(published):
    db = published
    first = append(db, "orders", payload='{"n": 1}', key="customer-7", headers='{"a": "b"}')
    large = append(db, "orders", payload=json.dumps("x" * 100_000))
    with db.transaction(force_rollback=True):
        append(db, "orders")
    assert append(db, "orders", id=first) == first  # a duplicate
    batch = [id for (id,) in rows(db, "append_batch", "bills", '[{"type": "t", "payload": 1}, {"type": "t", "payload": 2}]')]
    kinds, found = changes(db)
    assert set(kinds) == {"R", "I"}
    assert [row["id"] for row in found] == [str(id) for id in (first, large, *batch)]
    mapped = {key: PROPERTIES[f"transforms.outbox.{key}"] for key in (
        "table.field.event.id", "table.field.event.key", "table.field.event.type", "table.field.event.payload", "route.by.field")}
    additional = PROPERTIES["transforms.outbox.table.fields.additional.placement"].split(",")
    for column in [*mapped.values(), *(part.split(":")[0] for part in additional)]:
        assert column in found[0]
    told = {key: found[0][column] for key, column in mapped.items()}
    assert told["table.field.event.key"] == "customer-7" and told["table.field.event.type"] == "placed"
    assert told["route.by.field"] == "orders" and json.loads(told["table.field.event.payload"]) == {"n": 1}
    assert json.loads(found[0]["headers"]) == {"a": "b"}
    assert json.loads(found[1]["payload"]) == "x" * 100_000
    assert one(db, "SELECT %s::timestamptz = created_at FROM outbox.message WHERE id = %s", found[0]["occurred_at"], first)


def test_nothing_else_of_a_messages_life(published):
    db = published
    message, failed = append(db, "orders"), append(db, "orders")
    assert len(changes(db)[1]) == 2
    leases = {lease.id: lease.token for lease in claim(db)}
    assert value(db, "complete", leases[message])
    assert value(db, "abandon", leases[failed], "no")
    assert value(db, "retry_dead", failed)
    value(db, "pause", "orders")
    long_ago(db)
    assert value(db, "purge") == 1
    assert changes(db) == ([], [])


def test_the_columns_are_those_of_the_page(db):
    documented = dict(re.findall(r"^\| (\w+) \| (\w+)", DOCS, re.MULTILINE))
    documented.pop("column")
    stored = dict(db.execute("""SELECT attname, format_type(atttypid, NULL) || CASE WHEN attnotnull THEN ', not null' ELSE '' END
                                  FROM pg_attribute WHERE attrelid = 'outbox.envelope'::regclass AND attnum > 0""").fetchall())
    stored = {name: kind.replace("timestamp with time zone", "timestamptz") for name, kind in stored.items()}
    types = dict(re.findall(r"^\| (\w+) \| ([\w, ]+?) \|", DOCS, re.MULTILINE))
    assert {name: stored[name] for name in documented} == {name: types[name] for name in documented}


def test_ticking_off_lets_purge_delete(published, server, database):
    db = published
    for _ in range(3):
        append(db, "orders")
    grant, tick = SQL[1].split(";")[:2]
    db.execute(grant)
    with server.connect(database, user="debezium", autocommit=True) as debezium:
        assert one(debezium, tick) == 3
        assert one(debezium, tick) == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            claim(debezium, "bills")
    assert len(changes(db)[1]) == 3
    long_ago(db)
    assert value(db, "purge") == 3
    assert len(db.execute(SQL[2]).fetchall()) == 1
