#!/usr/bin/env python3
"""Standing checks: rules about the source that neither compiler nor linter knows.

    python3 dev/check.py                  all
    python3 dev/check.py layering pgspot  only these

A check is a function that yields a sentence for every place where its rule is broken.
"""

import argparse
import re
import subprocess
import sys
import tomllib

import build
import regress
import setup

SOURCE = setup.CHECKOUT / "src"

# From the top: a layer uses those below it, and itself.
LAYERS = ["lib", "api worker", "functions", "queue", "settings", "shmem", "tables", "pg", "error", "rules"]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}

# Codes of pgspot that do not apply here, each with the reason.
PGSPOT_IGNORED = {}


def here(file):
    return file.relative_to(setup.CHECKOUT)


def rust_files():
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs"],
        cwd=setup.CHECKOUT, capture_output=True, text=True, check=True,
    )
    files = [setup.CHECKOUT / line for line in tracked.stdout.splitlines()]
    return [file for file in files if file.exists()]


def code(text):
    """Rust source with comments and strings blanked out, line by line as before."""
    pattern = r'r(#*)".*?"\1|"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def expected_files():
    """Every test has an expected file and every expected file a test: a test that is not run is none."""
    for kind in regress.KINDS:
        yield from (f"{here(file)} has no expected file" for file in regress.unexpected(kind))
        yield from (f"{here(file)} belongs to no test" for file in regress.orphans(kind))


def unsafe_only_in_pg():
    """The word `unsafe` stands nowhere outside src/pg, not even in a comment."""
    for file in rust_files():
        inside = file.relative_to(SOURCE).parts if SOURCE in file.parents else ("",)
        if inside[0] == "pg":
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.search(r"\bunsafe\b", line):
                yield f"{here(file)}:{number} says unsafe"


def unsafe_says_why():
    """Each unsafe block, impl and fn carries its reason: `// SAFETY:`, or `# Safety` in a fn's doc."""
    starts = re.compile(r"\bunsafe\s+(\{|impl\b|trait\b|(?:extern\s+)?fn\s+\w)")
    for file in rust_files():
        lines = file.read_text().splitlines()
        for number, line in enumerate(code(file.read_text()).splitlines()):
            found = starts.search(line)  # of `unsafe extern "C" fn`, `code` has blanked the "C"
            if not found or reason_above(lines, number):
                continue
            if "fn" in found[1] and implements_trait(lines, number):
                continue  # the trait says it
            yield f"{here(file)}:{number + 1} has no SAFETY comment"


def reason_above(lines, number):
    """Walks up through the comments, the attributes and the rest of the same statement."""
    if "SAFETY:" in lines[number]:
        return True
    for line in reversed(lines[:number]):
        line = line.strip()
        if line.startswith("//"):
            if "SAFETY:" in line or "# Safety" in line:
                return True
        elif not line.startswith("#[") and (not line or line[-1] in ";{},"):
            return False
    return False


def implements_trait(lines, number):
    """Is this line in an `impl Trait for Type`? What encloses a line is indented less."""
    depth = indentation(lines[number])
    around = next((l for l in reversed(lines[:number]) if l.strip() and indentation(l) < depth), "")
    return bool(re.match(r"\s*(unsafe\s+)?impl\b.*\bfor\b", around))


def indentation(line):
    return len(line) - len(line.lstrip())


def imports(text, root):
    """Top-level modules that this source names through `root`, a pattern: `crate`, `super`."""
    text = code(text)
    for group in re.findall(rf"\b(?:{root})::\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", text):
        yield from re.findall(r"\w+", re.sub(r"\{[^{}]*\}|::\w+|\bas\s+\w+", "", group))
    yield from re.findall(rf"\b(?:{root})::(\w+)", text)


def layering():
    """Layers are folders: a file uses its own and those below."""
    for file in sorted(SOURCE.rglob("*.rs")):
        inside = file.relative_to(SOURCE).parts
        layer = inside[0].removesuffix(".rs")
        if layer not in RANK:
            yield f"{here(file)} is in no layer of dev/check.py"
            continue
        if layer == "rules":
            continue  # a crate of its own
        for name in sorted(set(imports(file.read_text(), "crate")) - {layer}):
            if RANK.get(name, -1) <= RANK[layer]:
                yield f"{here(file)} uses {name}"


def no_messages_in_pg():
    """src/pg can be lifted into another extension: it has no word of messages."""
    words = re.compile(r"\b(envelope|deliver(y|ies|ed)?|topic|leased?|outbox|receipt|claim(ed)?|producer|payload|subscription)s?\b", re.I)
    for file in sorted((SOURCE / "pg").rglob("*.rs")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if found := words.search(line):
                yield f"{here(file)}:{number} says {found[0]}"


LONGEST = 400


def short_files():
    """One idea a file: of source and tests none is longer than 400 lines."""
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "tests"], cwd=setup.CHECKOUT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        file = setup.CHECKOUT / name
        if file.suffix in {".rs", ".py", ".sql", ".go", ".ts", ".mjs"} and file.exists():
            lines = len(file.read_text().splitlines())
            if lines > LONGEST:
                yield f"{name} has {lines} lines"


def short_lines():
    """No line of Rust is longer than 120 columns, comments and strings included, which rustfmt leaves alone."""
    for file in rust_files():
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if len(line) > 120 and SOURCE in file.parents:
                yield f"{here(file)}:{number} has {len(line)} columns"


def circles():
    """No file uses, by whatever way, a file that uses it."""
    files = {".".join(f.relative_to(SOURCE).with_suffix("").parts): f for f in SOURCE.rglob("*.rs")}
    uses = {}
    for name, file in files.items():
        text = re.sub(r"\s+", "", code(file.read_text()).replace("super::", "")).replace("::", ".")
        group = re.findall(r"crate\.([\w.]*)\{((?:[^{}]|\{[^{}]*\})*)\}", text)
        paths = [f"{head}{part}" for head, parts in group for part in re.findall(r"[\w.]+", parts)]
        paths += re.findall(r"crate\.([\w.]+)", text)
        uses[name] = {other for other in files if other != name and any(f"{path}.".startswith(f"{other}.") for path in paths)}
    while ends := {name for name in uses if not uses[name]} | set(uses).difference(*uses.values()):
        uses = {name: others - ends for name, others in uses.items() if name not in ends}
    yield from (f"src/{name.replace('.', '/')}.rs is in a circle, or between two" for name in sorted(uses))


def paths():
    """A file that a comment or a page of the project names is there."""
    root = setup.CHECKOUT
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("sql/*.sql"), *SOURCE.rglob("*.rs"), *root.glob("dev/*.py")]
    for page in pages:
        folders = [root, SOURCE, page.parent, page.parent.parent]
        for path in set(re.findall(r"`([\w/]+\.(?:rs|py|sql))`|\b((?:src|dev|tests|sql|benches)/[\w/]+\.(?:rs|py|sql))\b", page.read_text())):
            path = "".join(path)
            if "NAME" not in path and not any((folder / path).exists() for folder in folders):
                yield f"{here(page)} names {path}"


def functions():
    """A SQL function is in the file of its name, or the head of its neighbour's file names it; likewise its regression test."""
    for name in re.findall(r"^CREATE (?:FUNCTION|PROCEDURE) outbox\.(\w+)", (setup.CHECKOUT / "sql/functions.sql").read_text(), re.M):
        for folder, ending in (SOURCE / "functions", "rs"), (setup.CHECKOUT / "tests/pg_regress/sql", "sql"):
            heads = (file.read_text().splitlines()[0] for file in folder.glob(f"*.{ending}"))
            if not (folder / f"{name}.{ending}").exists() and not any(re.search(rf"\b{name}\b", head) for head in heads):
                yield f"{name} has no {here(folder)}/{name}.{ending}"


def pure_rules():
    """The rules know nothing of PostgreSQL: their crate does not depend on pgrx."""
    manifest = tomllib.loads((SOURCE / "rules" / "Cargo.toml").read_text())
    yield from (f"src/rules depends on {name}" for name in manifest["dependencies"] if name.startswith("pgrx"))


def ascii_sql():
    """What the server is given is ASCII: anything else fails in a database of another encoding."""
    for file in sorted([*(setup.CHECKOUT / "sql").glob("*.sql"), *SOURCE.glob("queries/*.sql")]):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.isascii():
                yield f"{here(file)}:{number}: not ASCII"


def pgspot():
    """The generated install script gives nobody a way to take over whoever runs it."""
    scripts = [f for f in build.package().rglob("outbox--*.sql") if f.name.count("--") == 1]
    command = [sys.executable, "-m", "pgspot"]
    for ignored in PGSPOT_IGNORED:
        command += ["--ignore", ignored]
    for script in scripts:
        done = subprocess.run(
            [*command, str(script)], env=setup.prepare(), capture_output=True, text=True
        )
        if done.returncode or "Errors: 0 Warnings: 0 Unknown: 0" not in done.stdout:
            yield from (f"{script.name}: {line}" for line in (done.stdout + done.stderr).splitlines())
    if len(scripts) != 1:
        yield f"{len(scripts)} install scripts instead of one"


CHECKS = [
    expected_files,
    unsafe_only_in_pg,
    unsafe_says_why,
    layering,
    circles,
    no_messages_in_pg,
    short_files,
    short_lines,
    paths,
    functions,
    pure_rules,
    ascii_sql,
    pgspot,
]


def run(names=None):
    """Run these checks (None: all); prints a line each; returns (passed, failed)."""
    passed = failed = 0
    for check in CHECKS:
        if names and check.__name__ not in names:
            continue
        try:
            problems = list(check())
        except subprocess.CalledProcessError as error:
            problems = [f"{error.cmd[0]} failed: {error.stderr or ''}"]
        passed, failed = (passed, failed + 1) if problems else (passed + 1, failed)
        print(f"check      {check.__name__:30} {'FAILED' if problems else 'ok'}", flush=True)
        for problem in problems:
            print(f"    {problem}", flush=True)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(c.__name__ for c in CHECKS))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {c.__name__ for c in CHECKS}
    if unknown:
        raise setup.Missing(f"no check named {', '.join(sorted(unknown))}")
    passed, failed = run(arguments.names)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
