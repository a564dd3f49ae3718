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
import time
import uuid
from pathlib import Path

from expect import Failure, check, now, same, short

HERE = Path(__file__).resolve().parent
FUNCTIONS = json.loads((HERE / "functions.json").read_text())
PATIENCE = 60  # seconds until a runner that does not answer is an error
LONGEST_SLEEP = 10  # a `pass` over this is made with age.sql


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
        self.let_pass(400 * 86400)  # in a double, leases run out too
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
            shown = ("session", "call", "with", "sql", "args", "do", "together")
            what = {key: value for key, value in (step or {}).items() if key in shown}
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
            return check({**late.pop(step["join"]), **step}, self.session(step["join"]).receive(), names, FUNCTIONS)
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
        return check(step, answer, names, FUNCTIONS)

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

    def prepared_alternately(self, seconds=2):
        """How it ends when transactions of one session, with prepared statements, go over several connections."""
        calls = [{"call": "claim", "with": {"owner": "probe", "topic": "probe"}}, {"call": "pause", "with": {"topic": "probe"}}]
        within = [{"do": "begin"}, *calls, {"do": "commit"}]
        for steps, where in ((calls, ""), (within, " in transactions")):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for step in steps:
                    self.session("a").send(self.dialect.request(step))
                    answer = self.session("a").receive()
                    if "error" in answer:
                        return answer["error"] + where
                time.sleep(0.02)
            self.reset()
        return "works"

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
