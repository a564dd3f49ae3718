"""A message that the client's encoding cannot show is failed by the claim that meets it, and the claim goes on."""

import json
import time

import pytest
from conftest import append, claim, one, until, value
from psycopg.types.json import set_json_loads

WHY = 'character with byte sequence 0xe2 0x82 0xac in encoding "UTF8" has no equivalent in encoding "LATIN1"'


@pytest.fixture
def latin1(server, database):
    with server.connect(database, autocommit=True, client_encoding="latin1") as connection:
        set_json_loads(lambda data: json.loads(bytes(data).decode("latin1")), connection)
        yield connection


def told(db, message):
    query = "SELECT state, attempts, last_error FROM outbox.message WHERE id = %s"
    return db.execute(query, [message]).fetchone()


def make_due(db):
    db.execute("UPDATE outbox.delivery SET available_at = clock_timestamp() WHERE place = 'w'")


@pytest.mark.parametrize("binary", [False, True])
def test_the_claim_fails_it_and_goes_on(db, latin1, binary):
    bad = {
        "topic": append(db, "€"),
        "type": value(db, "append", "t", "€", "1"),
        "key": append(db, "t", key="€"),
        "payload": append(db, "t", '["é", {"a": [{"b": "%s€"}]}]' % ("x" * 10_000)),
        "payload ": append(db, "t", '{"€": 1}'),
        "headers": append(db, "t", headers='{"h": "€"}'),
    }
    good = append(db, "t", '{"é": "Straße"}', headers='{"ä": "\\u00fc"}', key="ö")
    with latin1.cursor(binary=binary) as cursor:
        query = "SELECT id, payload, headers, key FROM outbox.claim('w', batch_size => 1)"
        assert cursor.execute(query).fetchall() == [(good, {"é": "Straße"}, {"ä": "ü"}, "ö")]
    for column, message in bad.items():
        assert told(db, message) == ("waiting", 1, f"{column.strip()}: {WHY}")
    backoff = "SELECT available_at - clock_timestamp() BETWEEN '20 s' AND '30 s' FROM outbox.message WHERE id = %s"
    assert one(db, backoff, bad["key"])
    assert claim(latin1) == []
    make_due(db)
    assert [leased.id for leased in claim(db)] == list(bad.values())  # by who can show it
    assert one(db, "SELECT sum(failed_total) FROM outbox.stats") == 6


def test_the_last_attempt_is_its_death(db, latin1):
    value(db, "set_topic", "t", '{"max_attempts": 2}')
    message = append(db, "t", '"€"')
    for state in "waiting", "dead":
        assert claim(latin1, "t") == []
        assert (told(db, message)[0], told(db, message)[2]) == (state, f"payload: {WHY}")
        make_due(db)
    assert claim(latin1, "t") == []
    assert told(db, message)[1] == 2
    assert value(db, "retry_dead", message)
    assert [leased.id for leased in claim(db, "t")] == [message]


@pytest.mark.parametrize("block_on_dead", [False, True])
def test_its_key_waits_for_it(db, latin1, block_on_dead):
    value(db, "set_topic", "t", json.dumps({"max_attempts": 2, "block_on_dead": block_on_dead}))
    head, next_one, last = (append(db, "t", payload, key="k") for payload in ('"€"', "2", "3"))
    other = append(db, "t", key="other")
    assert [leased.id for leased in claim(latin1, "t")] == [other]
    assert claim(latin1, "t") == claim(db, "t") == []
    make_due(db)
    assert [leased.id for leased in claim(latin1, "t")] == ([] if block_on_dead else [next_one, last])
    assert [told(db, head)[0], claim(latin1, "t")] == ["dead", []]
    assert value(db, "retry_dead", head)
    if block_on_dead:
        assert [leased.id for leased in claim(db, "t")] == [head, next_one, last]


def test_younger_leases_of_its_key_go_back(db, latin1):
    head = append(db, "t", '"€"', key="k")
    younger = append(db, "t", key="k")
    tokens = [leased.token for leased in claim(db, "t", lease_seconds=1)]
    assert len(tokens) == 2
    until(lambda: one(db, "SELECT bool_and(leased_until < clock_timestamp()) FROM outbox.delivery"))
    assert claim(latin1, "t") == []
    assert not value(db, "complete", tokens[1])
    assert [told(db, head)[:2], told(db, younger)[1]] == [("waiting", 2), 0]
    make_due(db)
    assert [leased.id for leased in claim(db, "t")] == [head, younger]


def test_a_claim_that_waits_ends_so_that_it_counts(db, latin1):
    message = append(db, "t", '"€"')
    began = time.monotonic()
    assert claim(latin1, "t", wait_seconds=20) == []
    assert time.monotonic() - began < 5
    assert told(db, message) == ("waiting", 1, f"payload: {WHY}")
    make_due(db)
    good = append(db, "t")
    assert [leased.id for leased in claim(latin1, "t", wait_seconds=20)] == [good]
    assert told(db, message)[1] == 2


def test_rolled_back_it_does_not_count(db, latin1):
    message = append(db, "t", '"€"')
    with pytest.raises(ZeroDivisionError), latin1.transaction():
        assert claim(latin1, "t") == []
        raise ZeroDivisionError
    assert told(db, message) == ("ready", 0, None)


def test_the_sessions_encoding_decides_also_inside_the_server(db, latin1):
    bad, good = append(db, "t", '"€"'), append(db, "t")
    latin1.execute("CREATE TABLE taken AS SELECT id FROM outbox.claim('w', 't')")
    assert latin1.execute("SELECT id FROM taken").fetchall() == [(good,)]
    make_due(db)
    latin1.execute("SET client_encoding = 'UTF8'")
    assert [leased.id for leased in claim(latin1, "t")] == [bad]


def test_bytes_of_no_known_encoding(server):
    server.psql("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    server.psql("CREATE EXTENSION outbox", dbname="bytes")
    with server.connect("bytes", autocommit=True, client_encoding="utf8") as db:
        bad = one(db, "SELECT outbox.append('t', 't', to_jsonb(convert_from('\\x61ff', 'SQL_ASCII')))")
        good = append(db, "t", '"€"')
        assert [leased.id for leased in claim(db, "t")] == [good]
        why = 'payload: character with byte sequence 0xff in encoding "SQL_ASCII" has no equivalent in encoding "UTF8"'
        assert told(db, bad) == ("waiting", 1, why)
