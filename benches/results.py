"""results.json: what was measured, and the report made of it. A part that is measured again replaces its old one, system by system.

{"parts": {part: facts of its run}, "systems": {name: title, version, how}, "missing": {title: reason}, "measured": […]}, a line
each. In `measured`, a line has a workload, a case and a system: the medians, then every metric by round (in `held`, by stretch).
"""

import json
import time

import report
from figures import Samples, spread

NAMES = "workload", "case", "system"
INDEX = "round", "second"  # not measured


def part_of(sample):
    """What is measured in one go: a workload, of `held` one hold."""
    workload = sample["workload"].removesuffix("-left")
    return f"held {sample['case'].removesuffix(' held')}" if workload == "held" else workload


def short(value):
    """Six digits, without a fraction of zeros."""
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded % 1 == 0 else rounded


def packed(samples):
    """A dict each of workload, case and system."""
    groups = {}
    for sample in samples:
        groups.setdefault(tuple(sample[name] for name in NAMES), []).append(sample)
    for names, group in groups.items():
        metrics = {metric: [short(s.get(metric)) for s in group] for metric in dict.fromkeys(k for s in group for k in s) if metric not in NAMES}
        measured = {m: [v for v in values if v is not None] for m, values in metrics.items() if m not in INDEX}
        medians = {m: short(spread(values)[0]) for m, values in measured.items() if values}
        yield {**dict(zip(NAMES, names)), "medians": medians, **metrics}


def unpacked(lines):
    for line in lines:
        columns = {k: v for k, v in line.items() if k not in (*NAMES, "medians")}
        for values in zip(*columns.values()):
            yield {**{name: line[name] for name in NAMES}, **dict(zip(columns, values))}


def written(everything):
    """JSON, a line for each thing that is measured or measures."""
    sections = []
    for name, content in everything.items():
        if isinstance(content, dict):
            lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in content.items()]
            sections.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            sections.append(f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in content) + "\n]")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def read(file):
    """What `written` wrote, with `samples`."""
    everything = json.loads(file.read_text()) if file.exists() else {}
    if "measured" not in everything:  # none, or of an older form
        everything = {"parts": {}, "systems": {}, "missing": {}, "measured": []}
    everything["samples"] = Samples(unpacked(everything.pop("measured")))
    return everything


def write(output, everything):
    facts = {name: everything[name] for name in ("parts", "systems", "missing")}
    measured = list(packed(everything["samples"]))
    (output / "results.json").write_text(written({**facts, "measured": measured}))
    report.write(output, facts, Samples(unpacked(measured)))  # from what the file has, rounded as it is there


class Results:
    def __init__(self, output, command, systems, missing):
        self.output = output
        self.command = command
        self.systems = {s.name: {"title": s.title, "version": s.version, "how": s.api} for s in systems}
        self.missing = missing
        output.mkdir(parents=True, exist_ok=True)
        self.everything = read(output / "results.json")

    @property
    def samples(self):
        return self.everything["samples"]

    def is_of(self, commit):
        """Is every part there of that commit?"""
        return all(part["versions"].get("outbox") == commit for part in self.everything["parts"].values())

    def has(self, part):
        """Has it been measured to its end, without a failure?"""
        facts = self.everything["parts"].get(part)
        return facts is not None and facts["complete"] and not facts["failed"]

    def save(self, part, facts, samples):
        """`samples` are those of this part."""
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.pop("began")))
        versions = {name: system["version"] for name, system in self.systems.items()}
        old = self.everything
        kept = [s for s in old["samples"] if part_of(s) != part or s["system"] not in self.systems]
        beside = any(part_of(sample) == part for sample in kept)
        parts = dict(old["parts"])
        parts[f"{part}: {', '.join(self.systems)}" if beside else part] = {"command": self.command, "date": date, "versions": versions, **facts}
        systems = {**old["systems"], **self.systems}
        titles = {system["title"] for system in systems.values()}
        missing = {title: reason for title, reason in {**old["missing"], **self.missing}.items() if title not in titles}
        self.everything = {"parts": parts, "systems": systems, "missing": missing, "samples": Samples([*kept, *samples])}
        write(self.output, self.everything)
