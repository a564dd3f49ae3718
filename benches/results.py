"""results.json: what was measured, and the report made of it. A workload that is measured anew replaces its old part; of
held runs, which systems have one after the other, those of the same systems and holds.

{"parts": {workload: facts of its run}, "systems": {name: title, version, how}, "missing": {title: reason}, "samples": […]}
"""

import json
import time

import report
from figures import Samples


class Results:
    def __init__(self, output, command, systems, missing):
        self.output = output
        self.command = command.strip()
        self.systems = {s.name: {"title": s.title, "version": s.version, "how": s.api} for s in systems}
        self.missing = missing
        self.samples = Samples()
        self.anew = set()
        output.mkdir(parents=True, exist_ok=True)
        file = output / "results.json"
        self.old = json.loads(file.read_text()) if file.exists() else {"parts": {}, "systems": {}, "missing": {}, "samples": []}
        self.parts = dict(self.old["parts"])

    def save(self, workload, facts, samples):
        """`samples` are all of this run."""
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.pop("began")))
        versions = {name: system["version"] for name, system in self.systems.items()}
        self.anew.add(workload)
        runs = {(s["case"], s["system"]) for s in samples if s["workload"] == "held"}
        kept = [sample for sample in self.old["samples"] if not self.is_anew(sample, runs)]
        beside = any(sample["workload"] == workload for sample in kept)
        part = f"{workload}: {', '.join(self.systems)}" if beside else workload
        self.parts[part] = {"command": self.command, "date": date, "versions": versions, **facts}
        self.samples = Samples([*kept, *samples])
        systems = {**self.old["systems"], **self.systems}
        missing = {k: v for k, v in {**self.old["missing"], **self.missing}.items() if k not in self.titles(systems)}
        everything = {"parts": self.parts, "systems": systems, "missing": missing, "samples": self.samples}
        (self.output / "results.json").write_text(json.dumps(everything, indent=1))
        report.write(self.output, everything, self.samples)

    def is_anew(self, sample, runs):
        workload = sample["workload"].removesuffix("-left")
        return workload in self.anew and (workload != "held" or (sample["case"], sample["system"]) in runs)

    @staticmethod
    def titles(systems):
        return {system["title"] for system in systems.values()}
