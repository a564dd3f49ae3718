"""The benchmark report: it follows from its data, is small, names no path, and is measured part by part."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(CHECKOUT / "benches"))

import results  # noqa: E402
import run  # noqa: E402
from figures import Samples  # noqa: E402

REPORT = CHECKOUT / "benches" / "report"


def test_the_report_follows_from_its_data(tmp_path):
    results.write(tmp_path, results.read(REPORT / "results.json"))
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in REPORT.iterdir()}
    for file in tmp_path.iterdir():
        assert file.read_text() == (REPORT / file.name).read_text(), file.name


def test_the_report_is_small():
    assert len((REPORT / "results.json").read_text().splitlines()) < 2000
    assert len(list(REPORT.glob("*.svg"))) <= 12


def test_the_report_names_no_path():
    for file in "README.md", "results.json":
        assert not re.search(r"(^|[\s\"`=])/\w+/|--output|--installed", (REPORT / file).read_text()), file


def test_every_part_says_its_commit():
    parts = results.read(REPORT / "results.json")["parts"]
    assert len(parts) > 10
    assert [name for name, part in parts.items() if not re.fullmatch(r"\d+\.\d+\.\d+ \([0-9a-f]+\)", part["versions"]["outbox"])] == []


class Measured(list):
    """In place of the measurements: a sample each, until `stops` parts are done."""

    stops = 1000

    def __call__(self, todo, systems, into, full):
        for part, name, form in todo:
            if len(self) == self.stops:
                raise KeyboardInterrupt
            self.append(part)
            cases = [f"{hold} held" for hold in form.held] if name == "held" else ["a case"]
            samples = Samples()
            for case in cases:
                samples.add(name, case, "outbox", 0, rate=1.0)
                if name == "held":
                    samples[-1].update(second=0, claim_p50=1.0, claim_p99=1.0, latency_p50=1.0, latency_p99=1.0)
                    samples.add("held-left", case, "outbox", 0, left=0, seconds=1.0, wanted=1, offered=1)
            into.save(part, {**self.facts, "began": 0, "failed": [], "complete": True}, samples)
        return []

    facts = {k: v for k, v in results.read(REPORT / "results.json")["parts"]["append"].items() if k not in ("command", "date", "versions")}


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Runs `benches/run.py` with these arguments and this commit; says which parts it measured, and whether it came to its end."""
    (tmp_path / "area").mkdir()
    monkeypatch.setattr(run, "REPORT", tmp_path / "report")
    monkeypatch.setattr(run.setup, "area", lambda: tmp_path / "area")

    def bench(*arguments, commit="0.1.0 (aaaaaaa)", stops=1000):
        measured = Measured()
        measured.stops = stops
        system = SimpleNamespace(name="outbox", title="outbox", version=commit, api="")
        monkeypatch.setattr(run, "prepared", lambda names, installed: ([system], {}))
        monkeypatch.setattr(run, "measure", measured)
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        try:
            run.main()
        except KeyboardInterrupt:
            pass
        return list(measured), (tmp_path / "report" / "results.json").exists()

    return bench


def test_a_full_run_goes_on_where_it_was_stopped(bench, capsys):
    first, done = bench("--full", stops=3)
    assert len(first) == 3 and not done
    second, done = bench("--full")
    assert done and not set(first) & set(second)
    assert {"append", "keys", "held snapshot", "held idle writer"} <= {*first, *second}
    assert bench("--full") == ([], True)


def test_a_part_of_a_full_run(bench, capsys):
    assert bench("--full", "keys") == (["keys"], False)
    assert "still to be measured, about" in capsys.readouterr().out
    measured, done = bench("--full")
    assert done and "keys" not in measured


def test_another_commit_begins_again(bench, capsys):
    first, _ = bench("--full", stops=3)
    measured, done = bench("--full", commit="0.1.0 (bbbbbbb)")
    assert done and set(first) < set(measured)


def test_parts_say_how_long_the_rest_takes():
    assert run.minutes_of("append") > 1
    assert [part for part, _, _ in run.parts(["append", "held"], run.FULL)] == ["append", "held snapshot", "held idle writer"]
