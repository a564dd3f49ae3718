"""Databases that are not UTF8: names, payloads and error texts go in and out as they are, or end with the contract's
error; never XX000. Names are judged by the same rules, byte by byte where the bytes are no UTF-8.
"""

import json
import random

import psycopg
import pytest
from conftest import one, rows, sqlstate, value
from psycopg.types.json import set_json_loads

TEXTS = {  # what an encoding can hold that ASCII cannot
    "LATIN1": "Straße café £5",
    "LATIN9": "Straße 5 €",
    "WIN1252": "Straße – “5 €”",
    "EUC_JP": "注文を受けた",
    "UTF8": "注文 café € 🎉",
    "SQL_ASCII": "caf\xe9 \xff\xfe",
}


@pytest.fixture(params=TEXTS, scope="module")
def encoding(request, server):
    name = request.param
    server.psql(f"CREATE DATABASE {name} ENCODING '{name}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    server.psql("CREATE EXTENSION outbox", dbname=name.lower())
    return name


def loads_bytes(data):
    return json.loads(bytes(data).decode("latin1"))


@pytest.fixture
def db(server, encoding):
    # SQL_ASCII has no conversion: let Python see each byte as one character
    client = "latin1" if encoding == "SQL_ASCII" else "utf8"
    with server.connect(encoding.lower(), autocommit=True, client_encoding=client) as connection:
        if encoding == "SQL_ASCII":
            set_json_loads(loads_bytes, connection)
        yield connection


@pytest.fixture
def text(encoding):
    return TEXTS[encoding]


def jsonb(text):
    return '{"text": "%s"}' % text


def test_a_message_comes_out_as_it_went_in(db, text):
    names = {"topic": f"topic {text}", "type": f"type {text}", "key": f"key {text}"}
    message = value(db, "append", **names, payload=jsonb(text), headers=jsonb(text))
    (leased,) = rows(db, "claim", f"owner {text}", names["topic"])
    assert leased.id == message
    assert {name: getattr(leased, name) for name in names} == names
    assert leased.payload == leased.headers == {"text": text}
    assert one(db, "SELECT lease_owner FROM outbox.message WHERE id = %s", message) == f"owner {text}"
    assert value(db, "fail", leased.token, f"error {text}", "2020-01-01") == "waiting"
    assert one(db, "SELECT last_error FROM outbox.message WHERE id = %s", message) == f"error {text}"
    (leased,) = rows(db, "claim", "owner", names["topic"])
    assert value(db, "consume_once", f"consumer {text}", message)
    assert not value(db, "consume_once", f"consumer {text}", message)
    assert value(db, "complete", leased.token)


def test_a_batch_comes_out_as_it_went_in(db, text):
    batch = '[{"type": "t %s", "key": "k %s", "payload": %s}]' % (text, text, jsonb(text))
    rows(db, "append_batch", f"batch {text}", batch)
    (leased,) = rows(db, "claim", "owner", f"batch {text}")
    assert (leased.type, leased.key, leased.payload) == (f"t {text}", f"k {text}", {"text": text})
    assert value(db, "complete", leased.token)


def test_a_long_error_is_cut_between_characters(db, text):
    value(db, "append", "long", "t", "1")
    for first in range(3):  # so that the cut falls into every place of a character
        (leased,) = rows(db, "claim", "owner", "long")
        assert value(db, "fail", leased.token, "x" * first + text * 8192, "2020-01-01") == "waiting"
        kept = one(db, "SELECT last_error FROM outbox.message WHERE id = %s", leased.id)
        assert ("x" * first + text * 8192).startswith(kept)
        length = "SELECT octet_length(last_error) FROM outbox.message WHERE id = %s"
        assert 8192 - 4 < one(db, length, leased.id) <= 8192
    assert value(db, "complete", rows(db, "claim", "owner", "long")[0].token)


def test_rights_know_roles_and_topics_by_their_names(db, text):
    role, topic = f"role {text}", f"topic of {text}"
    db.execute(f'CREATE ROLE "{role}"')
    value(db, "grant_access", role, f"producer:{topic}")
    assert one(db, "SELECT role FROM outbox.access WHERE number IS NOT NULL") == role
    with db.transaction(force_rollback=True):
        db.execute(f'SET LOCAL ROLE "{role}"')
        value(db, "append", topic, "t", "1")
        assert sqlstate(db, "append", text, "t", "1") == "42501"
    value(db, "revoke_access", role, f"producer:{topic}")
    db.execute(f'DROP ROLE "{role}"')


def test_bad_names_are_22023(db, text):
    for bad in " ", f"{text}\x07", f"{text}\n", text + "x" * 255:
        assert sqlstate(db, "append", bad, "t", "1") == "22023"
        assert sqlstate(db, "append", "t", bad, "1") == "22023"
        assert sqlstate(db, "append", "t", "t", "1", key=bad) == "22023"
        assert sqlstate(db, "claim", bad) == "22023"
        assert sqlstate(db, "consume_once", bad, "00000000-0000-4000-8000-000000000001") == "22023"


def test_letters_are_not_taken_for_something_else(db, encoding):
    """Two letters whose bytes would be a control character, or blank, if they were UTF-8."""
    letters = {"WIN1252": "Â…", "LATIN1": "Â\u00a0", "LATIN9": "Â\u00a0"}.get(encoding, "Â")
    if encoding != "EUC_JP":
        assert value(db, "append", letters, letters, "1", key=letters)
        assert value(db, "complete", rows(db, "claim", letters, letters)[0].token)


def test_255_bytes_are_a_name(db, text, encoding):
    size = one(db, "SELECT octet_length(%s::text)", text)
    name = text + "x" * (255 - size)
    assert value(db, "append", name, name, "1", key=name)
    assert sqlstate(db, "append", name + "x", "t", "1") == "22023"
    assert value(db, "complete", rows(db, "claim", name, name)[0].token)


@pytest.mark.parametrize("where", ["key", "type", "id", "available_at"])
def test_bad_batches_are_the_contracts_errors(db, text, where):
    """The faulty text is in the message of some of them: it must be sendable."""
    element = {
        "key": '"type": "t", "payload": 1, "%s": 1',
        "type": '"type": "t\\u0007%s", "payload": 1',
        "id": '"type": "t", "payload": 1, "id": "%s"',
        "available_at": '"type": "t", "payload": 1, "available_at": "%s"',
    }[where]
    batch = "[{%s}]" % (element % text)
    assert sqlstate(db, "append_batch", "t", batch) == ("22P02" if where == "id" else "22023")
    long = "[{%s}]" % (element % (text * 20))  # cut somewhere
    assert sqlstate(db, "append_batch", "t", long) == ("22P02" if where == "id" else "22023")


def test_text_that_the_encoding_cannot_hold_is_cores_own_error(db, encoding):
    foreign = {"LATIN1": "€", "LATIN9": "注", "WIN1252": "注", "EUC_JP": "🎉"}.get(encoding)
    if foreign is None:  # there is nothing that these two cannot hold
        assert encoding in ("UTF8", "SQL_ASCII")
        return
    for arguments in (foreign, "t", "1"), ("t", foreign, "1"), ("t", "t", jsonb(foreign)):
        assert sqlstate(db, "append", *arguments) == "22P05"
    escaped = '"\\u6ce8"' if encoding != "EUC_JP" else '"\\ud83c\\udf89"'
    assert sqlstate(db, "append", "t", "t", escaped) in ("22P05", "0A000")


def test_bytes_that_are_no_character_are_cores_own_error(db, encoding):
    if encoding not in ("UTF8", "EUC_JP"):  # every byte is one
        return
    with pytest.raises(psycopg.Error) as raised:
        db.execute("SELECT outbox.append(E'a\\xe9', 't', '1')")
    assert raised.value.sqlstate == "22021"


def number(chance):
    digits = "".join(chance.choices("0123456789", k=chance.choice([1, 2, 4, 5, 9, 40])))
    point = chance.choice(["", ".0", ".", "." + "0" * chance.randint(0, 70)])
    fraction = point + (str(chance.randint(0, 10**9)) if point else "")
    exponent = chance.choice([0, 1, 3, -1, chance.randint(-300, 300), chance.choice([16000, -16000, 130000])])
    return f"{chance.choice(['', '-'])}{int(digits)}{fraction}e{exponent}"


def anything(chance, text, depth=4):
    """Any JSON, as text."""
    several = range(chance.choice([0, 1, 2, 3, 40]) if depth else 0)
    string = "".join(chance.choices(text + 'ab"\\/\b\f\n\r\t\x01\x1f\x7f', k=chance.choice([0, 1, 5, 130])))
    kinds = [
        lambda: chance.choice(["null", "true", "false"]),
        lambda: number(chance),
        lambda: json.dumps(string, ensure_ascii=False),
        lambda: "[%s]" % ",".join(anything(chance, text, depth - 1) for _ in several),
        lambda: "{%s}" % ",".join('"k%s%d": %s' % (text, n, anything(chance, text, depth - 1)) for n in several),
    ]
    return chance.choice(kinds[: 5 if depth else 3])()


def test_the_limit_for_the_text_is_exact(db, text, seed):
    """Refused by one byte, with the number of them, and stored with one more."""
    text = "".join(letter for letter in text if letter not in '"\\')
    chance = random.Random(seed)
    bodies = [f"[{anything(chance, text)}, 1e120000]" for _ in range(60)]
    db.execute("""CREATE FUNCTION pg_temp.told(body jsonb, more integer) RETURNS text LANGUAGE plpgsql AS $$
                  DECLARE told text;
                  BEGIN
                    PERFORM set_config('outbox.max_payload_bytes', (octet_length(body::text) + more)::text, true);
                    PERFORM outbox.append('size', 'type', body);
                    RETURN 'stored';
                  EXCEPTION WHEN program_limit_exceeded THEN
                    GET STACKED DIAGNOSTICS told = PG_EXCEPTION_DETAIL;
                    RETURN told;
                  END $$""")
    wrong = db.execute(
        """SELECT body, length, refused, stored
             FROM (SELECT body, octet_length(body::text) AS length, pg_temp.told(body, -1) AS refused,
                          pg_temp.told(body, 0) AS stored
                     FROM unnest(%s::jsonb[]) AS body OFFSET 0) AS told
            WHERE refused NOT LIKE 'It has ' || length || ' bytes, %%' OR stored <> 'stored'""",
        [bodies],
    ).fetchall()
    assert wrong == []
