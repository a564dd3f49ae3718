"""The contract as cases, and what runs them: sessions of a driver, steps, comparisons.

A case is a list of steps (cases/*.json; docs/clients/contract.md has the words). A step becomes a request, one line of
JSON, to a runner (runners/*), which answers with one line. A session is a process of the runner, so a runner knows
nothing of cases, sessions or expectations.
"""

import datetime
import json
import os
import re
import select
import subprocess
import sys
import time
import uuid
from decimal import Decimal
from pathlib import Path

HERE = Path(__file__).resolve().parent
FUNCTIONS = json.loads((HERE / "functions.json").read_text())
PATIENCE = 60  # seconds until a runner that does not answer is an error
LONGEST_SLEEP = 10  # a `pass` over this is made with age.sql
sys.setrecursionlimit(20_000)  # payloads are compared as trees


def load():
    """{class: [case]}, in the order of the files."""
    files = sorted((HERE / "cases").glob("*.json"))
    return {file.stem.partition("-")[2]: json.loads(file.read_text()) for file in files}


def quick(classes):
    """Without the cases that take a second or more: they ask about the server's clock, not about the driver."""
    return {name: [case for case in cases if not case.get("slow")] for name, cases in classes.items()}


def core(classes):
    """What needs one session and no SQL of its own: cases that fit a double without a database."""

    def fits(case):
        return all(set(step) & {"call", "pass"} and "session" not in step for step in case["steps"])

    return {name: [case for case in cases if fits(case)] for name, cases in classes.items()}


TOKEN = "00000000-0000-8001-8000-000000000001"
BECOMES = {"jsonb": "it becomes a JSON string", "boolean": "it becomes false"}
EXACT = ["0.1234567890123456789", "12345678901234567890", "1e400"]
PROBES = {  # what a user writes who has only strings
    "uuid": ("SELECT outbox.complete($1)", TOKEN),
    "uuid[]": ("SELECT count(*) FROM outbox.complete_batch($1)", "{" + TOKEN + "}"),
    "jsonb": ("SELECT jsonb_typeof($1) = 'object'", "{}"),
    "timestamptz": (f"SELECT outbox.fail('{TOKEN}', NULL, $1)", "2100-01-01T00:00:00Z"),
    "integer": ("SELECT count(*) FROM outbox.claim('probe', 'probe', $1)", "1"),
    "boolean": ("SELECT $1 AND outbox.redrive('probe', NULL, NULL, false) = 0", "true"),
}


class Failure(Exception):
    """A step did not end as the case says."""


# -- sessions --------------------------------------------------------------------------------


class Session:
    """A process of a runner, with one connection."""

    def __init__(self, command, mode, environment, log):
        self.buffer = b""
        self.process = subprocess.Popen(
            [*map(str, command), json.dumps(mode)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )

    def send(self, request):
        try:
            self.process.stdin.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failure(f"the runner ended with {self.process.wait()}") from None

    def line(self, seconds):
        """The next line of its answers, or None when it does not come in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            block = os.read(self.process.stdout.fileno(), 1 << 20)
            if not block:
                raise Failure(f"the runner ended with {self.process.wait()}")
            self.buffer += block
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def receive(self):
        line = self.line(PATIENCE)
        if line is None:
            raise Failure(f"no answer within {PATIENCE} s")
        try:
            return json.loads(line)
        except ValueError:
            raise Failure(f"the runner said {line[:200]!r}") from None

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


# -- from a case to requests -----------------------------------------------------------------


def substitute(value, names):
    """Puts in variables ($name, ${name}) and makes long values (repeat, times, in)."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{?([a-z]\w*)\}?", value)
        if whole:
            return names[whole[1]]
        return re.sub(r"\$\{([a-z]\w*)\}|\$([a-z]\w*)", lambda m: names[m[1] or m[2]], value)
    if isinstance(value, list):
        return [substitute(item, names) for item in value]
    if isinstance(value, dict):
        if "repeat" in value:
            parts = iter(value["repeat"])
            return "".join(text * number for text, number in zip(parts, parts))
        if "times" in value:
            return [value["times"][0]] * value["times"][1]
        if "in" in value:
            return (now() + datetime.timedelta(seconds=value["in"])).isoformat()
        return {key: substitute(item, names) for key, item in value.items()}
    return value


def literal(value):
    """An array as PostgreSQL writes it."""
    if isinstance(value, list):
        return "{" + ",".join("NULL" if item is None else literal(item) for item in value) + "}"
    return str(value)


def as_text(value):
    if value is None:
        return None
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else literal(value)


class Dialect:
    """How a driver writes placeholders, and how this mode passes parameters."""

    def __init__(self, style, mode):
        self.style = style  # dollar, percent, question
        self.params = mode.get("params", "typed")  # typed, text, cast
        self.positional = mode.get("notation") == "positional"

    def place(self, number, type):
        place = {"dollar": f"${number}", "percent": "%s", "question": "?"}[self.style]
        return f"{place}::text::{type}" if self.params == "cast" else place

    def parameter(self, type, value):
        return [type, value] if self.params == "typed" else ["text", as_text(value)]

    def statement(self, text, arguments):
        """A statement with $1, $2 …, each once and in order."""
        if self.style == "percent" and arguments:
            text = text.replace("%", "%%")
        types = [type for type, _ in arguments]
        text = re.sub(r"\$(\d+)", lambda m: self.place(int(m[1]), types[int(m[1]) - 1]), text) if arguments else text
        return {"sql": text, "params": [self.parameter(*argument) for argument in arguments]}

    def call(self, name, given):
        function = FUNCTIONS[name]
        arguments = [argument for argument in function["arguments"] if argument[0] in given]
        if "sql" in function:
            text = function["sql"]
            for number, (argument, _) in enumerate(arguments, 1):
                text = text.replace("{" + argument + "}", f"${number}")
            return self.statement(text, [[type, given[name]] for name, type, *_ in arguments])
        if self.positional and given:
            last = max(i for i, argument in enumerate(function["arguments"]) if argument[0] in given)
            arguments = function["arguments"][: last + 1]
            given = {**{name: default[0] for name, _, *default in arguments if default}, **given}
        places = [("" if self.positional else f"{argument[0]} => ") + f"${number}" for number, argument in enumerate(arguments, 1)]
        verb = "CALL" if function.get("procedure") else "SELECT * FROM"
        text = f"{verb} outbox.{name}({', '.join(places)})"
        return self.statement(text, [[type, given[name]] for name, type, *_ in arguments])

    def request(self, step):
        if "together" in step:
            return {"batch": [self.request(inner) for inner in step["together"]]}
        if "do" in step:
            return {"do": step["do"]}
        if "call" in step:  # `call` and `with` are for runners that know the functions and no SQL
            return {"call": step["call"], "with": step["with"], **self.call(step["call"], step["with"])}
        return self.statement(step["sql"], step.get("args", []))


# -- comparing -------------------------------------------------------------------------------


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


def check(step, answer, names):
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
            check(inner, result, names)
        return False
    columns, rows = answer.get("columns", []), answer.get("rows", [])
    types = dict(FUNCTIONS[step["call"]]["returns"]) if "call" in step else {}
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


# -- running ---------------------------------------------------------------------------------


class Run:
    """The cases through one driver in one mode, in a database of their own."""

    def __init__(self, name, open_session, dialect, elapse):
        self.name = name
        self.open_session = open_session
        self.dialect = dialect
        self.elapse = elapse  # lets so many seconds pass for what is over; None: the runner has a clock that moves
        self.sessions = {}

    def session(self, name):
        if name not in self.sessions:
            self.sessions[name] = self.open_session()
        return self.sessions[name]

    def let_pass(self, seconds):
        if self.elapse is None:  # a double has a clock of its own
            self.session("a").send({"pass": seconds})
            self.session("a").receive()
        elif seconds <= LONGEST_SLEEP:
            time.sleep(seconds)
        else:
            self.elapse(seconds)

    def drain(self):
        """Nothing to deliver and nothing to purge, for cases that look at all topics."""
        session = self.session("a")
        claim = self.dialect.request({"call": "claim", "with": {"owner": "drain", "batch_size": 500}})
        while True:
            session.send(claim)
            answer = session.receive()
            if not answer.get("rows"):
                break
            tokens = [row[answer["columns"].index("token")] for row in answer["rows"]]
            session.send(self.dialect.request({"call": "complete_batch", "with": {"tokens": tokens}}))
            session.receive()
        self.let_pass(400 * 86400)
        session.send(self.dialect.request({"call": "purge", "with": {}}))
        session.receive()

    def case(self, case, number):
        """None when all is well, else what is not; and whether the driver refused a value itself."""
        names = {"topic": f"{self.name}.{number}", "role": f"{self.name}_{number}"}
        names.update({f"uuid{i}": str(uuid.uuid4()) for i in (1, 2, 3)})
        names["t0"] = None
        refused, late, step = False, {}, None
        try:
            if case.get("alone"):
                self.drain()
            for step in case["steps"]:
                step = substitute({k: v for k, v in step.items() if k != "save"}, Names(names)) | {"save": step.get("save", {})}
                refused |= bool(self.step(step, names, late))
        except (Failure, KeyError, ValueError, IndexError) as failure:
            what = {k: v for k, v in step.items() if k in ("session", "call", "with", "sql", "args", "do", "together")} if step else {}
            self.reset(forget=True)
            return f"{short(what)}: {type(failure).__name__ if not isinstance(failure, Failure) else ''}{failure}", refused
        return None, refused

    def step(self, step, names, late):
        if "pass" in step:
            return self.let_pass(step["pass"])
        if "still" in step:
            line = self.session(step["still"]).line(step["for"])
            if line is not None:
                raise Failure(f"it did not wait: {line[:300]!r}")
            return None
        if "join" in step:
            return check({**late.pop(step["join"]), **step}, self.session(step["join"]).receive(), names)
        session = self.session(step.get("session", "a"))
        request = self.dialect.request(step)
        started = time.monotonic()
        session.send(request)
        if step.get("later"):
            late[step["session"]] = step
            return None
        answer = session.receive()
        took = time.monotonic() - started
        if "seconds" in step and self.elapse and not step["seconds"][0] <= took <= step["seconds"][1]:
            raise Failure(f"it took {took:.2f} s")
        return check(step, answer, names)

    def probe(self):
        """{type: how it ends to pass a string where that type is due}: yes, a SQLSTATE, or that the driver refuses.

        And how the driver gives values by itself, without what the runner tells it otherwise (`plain`).
        """
        found = {}
        session = self.sessions["plain"] = self.open_session(plain=True)
        for type, (sql, value) in PROBES.items():
            session.send(self.dialect.statement(sql, [["text", value]]))
            answer = session.receive()
            error = answer.get("error")
            found[type] = "the driver refuses" if error == "client" else error or "yes"
            if type in BECOMES and not error and not same("boolean", True, answer["rows"][0][0]):
                found[type] = BECOMES[type]
        def native(sql):
            session.send(self.dialect.statement(sql, []))
            return session.receive()["rows"][0][0]

        found["bigint"] = "text" if isinstance(native("SELECT outbox.redrive('probe')"), str) else "a number"
        numbers = native("""SELECT '{"n": [0.1234567890123456789, 12345678901234567890, 1e400]}'::jsonb""")
        if isinstance(numbers, str):
            found["digits"] = "text, all digits"
        else:
            kept = [repr(n) for n in numbers["n"]]
            lost = [name for name, exact, n in zip(("fractions", "whole numbers", "`1e400`"), EXACT, kept) if n != exact]
            found["digits"] = "parsed; loses " + ", ".join(lost) if lost else "parsed, all digits"
        return found

    def reset(self, forget=False):
        for session in self.sessions.values():
            if forget:
                session.process.kill()
            session.close()
        self.sessions.clear()

    def run(self, classes):
        """A result per case, as it ends. Cases that look at all topics come first, while there are few."""
        ordered = [(c, case) for c, cases in classes.items() for case in cases]
        ordered.sort(key=lambda pair: not pair[1].get("alone"))
        deaths = 0  # in sequence: a runner that cannot connect is not started for every case
        for number, (name, case) in enumerate(ordered):
            started = time.monotonic()
            why, refused = self.case(case, number) if deaths < 3 else ("the runner ends again and again", False)
            deaths = deaths + 1 if why and "the runner end" in why else 0
            seconds = round(time.monotonic() - started, 3)
            yield {"class": name, "case": case["case"], "ok": why is None, "refused": refused, "why": why, "seconds": seconds}
        self.reset()


class Names(dict):
    def __missing__(self, name):
        raise Failure(f"the case has no ${name}")
