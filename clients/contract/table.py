"""What came out, as the tables of docs/clients/drivers.md."""

import dataclasses

import drivers
import setup
import suite

PAGE = setup.CHECKOUT / "docs" / "clients" / "drivers.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
WAYS = {  # column: label of the mode
    "typed": "typed",
    "untyped": "untyped, positional",
    "cast": "cast",
    "prepared": "prepared",
    "binary": "binary",
    "pipeline": "pipeline",
    "pgbouncer": "pgbouncer",
    "pgbouncer, prepared": "pgbouncer, prepared",
}


@dataclasses.dataclass
class Outcome:
    drivers: list
    results: list
    probes: dict  # driver: what Run.probe() says, and what becomes of prepared statements in an old pooler
    holes: dict  # what could not be tried: why
    versions: dict

    def cell(self, results, notes):
        if not results:
            return ""
        differs = sorted({r["differs"] for r in results if not r["ok"] and r["differs"]})
        bad = sum(not r["ok"] and not r["differs"] for r in results)
        marks = "".join(f" [{self.note(text, notes)}]" for text in differs)
        return (f"**{bad} failed**" if bad else "✓") + marks

    def note(self, text, notes):
        if text not in notes:
            notes.append(text)
        return notes.index(text) + 1

    def classes(self, notes):
        names = list(dict.fromkeys(r["class"] for r in self.results))
        first = self.drivers[0].name
        once = {(r["class"], r["case"]) for r in self.results if r["driver"] == first}
        yield ["class", "cases", *(d.name for d in self.drivers)]
        for name in sorted(names, key=list(suite.load()).index):
            row = [name, str(sum(c == name for c, _ in once))]
            for driver in self.drivers:
                row.append(self.cell([r for r in self.results if r["driver"] == driver.name and r["class"] == name], notes))
            yield row
        row = ["", str(len(once))]
        row += [str(sum(r["ok"] for r in self.results if r["driver"] == d.name)) + " passed" for d in self.drivers]
        yield row

    def ways(self, notes):
        yield ["driver", "version", *WAYS, "pgbouncer before 1.21, prepared"]
        for driver in self.drivers:
            row = [f"{driver.language}: {driver.name}", self.versions.get(driver.name, "")]
            for way, label in WAYS.items():
                mine = [r for r in self.results if r["driver"] == driver.name and r["mode"] == label]
                label = "positional" if way == "untyped" and not mine else label
                if way in driver.without:
                    text = driver.without[way]
                    row.append(text if text == drivers.ALWAYS else f"– [{self.note(text, notes)}]")
                else:
                    row.append(self.cell(mine, notes))
            yield [*row, self.probes.get(driver.name, {}).get("old pooler", "")]
        for name, (language, why) in drivers.MISSING.items():
            yield [f"{language}: {name}", f"– [{self.note(why, notes)}]", *("" for _ in WAYS), ""]

    def strings(self):
        types = ["uuid", "uuid[]", "jsonb", "timestamptz", "integer", "boolean"]
        yield ["driver", *types, "bigint comes as", "jsonb comes as"]
        for driver in self.drivers:
            found = self.probes.get(driver.name)
            if found and "digits" in found:
                yield [driver.name, *(found[type] for type in types), found["bigint"], found["digits"]]

    def markdown(self):
        notes = []
        parts = [
            "### Cases\n", table(self.classes(notes)),
            "### Ways of work\n", table(self.ways(notes)),
            "### A string where another type is due, and what comes by itself\n", table(self.strings()),
        ]  # fmt: skip
        parts += [f"[{number}] {text}  " for number, text in enumerate(notes, 1)]
        parts += [f"Could not be tried: {name}: {why}  " for name, why in self.holes.items()]
        return "\n".join(parts) + "\n"

    def write(self):
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(before + BEGIN + self.markdown() + END + after)


def table(rows):
    head, *rows = rows
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
