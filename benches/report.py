"""The report: a page of Markdown with charts. Every number is a median with its spread; peers that are better are named."""

from pathlib import Path
from statistics import median

import charts
from bars import bars
from figures import METRICS, spread
from workloads import (
    append, batch, cost, deliver, drain, expiry, growth, held, keys, latency, pipe, soak, topics, trigger, views,
)  # fmt: skip

PARTS = {
    "append": append, "batch": batch, "deliver": deliver, "cost": cost,
    "keys": keys, "topics": topics, "growth": growth, "pipe": pipe, "latency": latency, "views": views,
    "trigger": trigger, "drain": drain, "expiry": expiry, "soak": soak,
}  # fmt: skip
MEANING = {
    "rate": "how many messages a system took or delivered per second of the measurement",
    "wal": "bytes the server wrote to its log: what replicas, archives and disks carry; all of the server, background included",
    "cpu": "user and system time of all processes of the server; a client's own work (Node, Python, pgbench) is not in it",
    "claim_p50": "how long the statement takes that hands out messages, seen by a connected client",
    "growth": "the claim beside many rows over the claim without them",
    "latency_p50": "from the moment a message was due to be appended, whether or not the producer was free, to its completion",
    "hands_p50": "from the call of append, its commit included, to the message in the hands of a worker's client",
    "rows_p50": "from the commit of an append to the rows of a claim that waited, by the server's clock",
    "backend": "user and system time of the sessions that append, claim and answer, autovacuum and the like not in it",
    "again_p50": "from the end of an unanswered lease to the claim that took the message again",
    "behind": "messages appended and not delivered, in seconds of load; backoff and unanswered leases are in it",
    "wakeups": "how often a session that waited looked at the table because it was woken",
    "read_p50": "SELECT * FROM the view, seen by a connected client",
    "dead": "dead rows per message delivered, for vacuum to remove",
    "size": "tables and indexes after all is delivered, history included where a system keeps it",
}
CHARTS = {  # at most a dozen: case, by workload, and what is drawn
    ("append", "4 clients, synchronous commit on"): ["rate"],
    ("append", "4 clients, synchronous commit off"): ["rate"],
    ("batch", "synchronous commit off"): ["rate"],
    ("deliver", "by 100, 1 client, synchronous commit off"): ["rate"],
    ("deliver", "by 1, 1 client, synchronous commit off"): ["rate"],
    ("cost", cost.LIFE): ["wal"],
    ("topics", "any of 1,000 topics"): ["claim_p50"],
    ("growth", "1,000,000 retained"): ["claim_p50"],
    ("pipe", "1,000 messages per second offered"): ["latency_p99"],
    ("held", "snapshot held"): ["claim_p50", "latency_p50"],
    ("held", "idle writer held"): ["claim_p50"],
}


def write(output, facts, samples):
    for old in output.glob("*.svg"):
        old.unlink()
    parts = [head(facts), bars_part(samples), better(facts, samples)]
    parts += [part(output, facts, samples, name, module) for name, module in PARTS.items() if samples.of(workload=name)]
    if samples.of(workload="held"):
        parts.append(held_part(output, facts, samples))
    (output / "README.md").write_text("\n".join(parts))


def head(facts):
    lines = ["# Benchmarks", ""]
    lines += ["outbox beside its alternatives, each through its own public interface at the settings its documentation"]
    lines += ["names as best. One server; the systems take turns (A B C A B C …) unless a part says otherwise. A cell is the"]
    lines += ["median of the rounds and, in brackets, the lowest and the highest. Ratios are medians of the ratios within each"]
    lines += ["round. Payloads are 300 bytes of JSON unless a case names another size. Machine-readable:"]
    lines += ["[results.json](results.json). The table of parts says which commit each part measured.", ""]
    lines += ["| what | means |", "|---|---|"]
    lines += [f"| {title}, {unit or 'a number'} | {MEANING[metric]} |" for metric, (title, unit, _, _) in METRICS.items() if metric in MEANING]
    lines += ["", "## Where and how", ""]
    last = list(facts["parts"].values())[-1]
    lines += [f"- Machine: {last['machine']}, {last['kernel']}."]
    lines += [f"- PostgreSQL {last['postgresql']}; a durable transaction of one client takes {last['commit']}."]
    settings = ", ".join(f"`{key} = {value}`" for key, value in last["settings"].items())
    lines += [f"- Settings: {settings}; all others PostgreSQL's defaults.", ""]
    lines += ["| system | version | how it is used |", "|---|---|---|"]
    lines += [f"| {s['title']} | {s['version']} | {s['how']} |" for s in facts["systems"].values()]
    lines += [f"| {title} | – | not measured: {reason} |" for title, reason in facts["missing"].items()]
    lines += ["", "| part | measured | minutes | outbox | load average before | a commit takes | by |", "|---|---|---|---|---|---|---|"]
    for name, part in facts["parts"].items():
        cells = [name, part["date"], part["minutes"], part["versions"].get("outbox", "–"), part["load before"], part["commit"]]
        lines.append("| " + " | ".join(map(str, cells)) + f" | `{part['command']}` |")
    failed = [f"- {name}: {reason}" for name, part in facts["parts"].items() for reason in part["failed"]]
    lines += ["", "Not measured because it failed:", "", *failed] if failed else []
    return "\n".join(lines) + "\n"


def bars_rows(samples):
    for bar in bars(samples):
        sign = "≤" if bar.at_most else "≥"
        value = "–" if bar.value is None else f"{bar.value:.2f}"
        around = f"{min(bar.values):.2f}–{max(bar.values):.2f}" if bar.values else ""
        stretch = f"{sign} {bar.stretch:g}" if bar.stretch else ""
        by_cpu = f"{median(bar.by_cpu):.2f}" if bar.by_cpu else ""
        yield bar.what, value, around, by_cpu, f"{sign} {bar.bound:g}", stretch, bar.verdict


def bars_part(samples):
    lines = ["## Bars", "", "What outbox promises itself, as ratios within one run. \"By CPU\" is the same ratio taken from the CPU time the"]
    lines += ["server spent per message, which other work on the machine disturbs less.", ""]
    lines += ["| what | value | spread | by CPU | bar | stretch | |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in bars_rows(samples)]
    return "\n".join(lines) + "\n"


def bars_as_text(samples):
    """Those that this run has measured."""
    rows = [("what", "value", "spread", "by CPU", "bar", "stretch", "")]
    rows += [tuple(cell.replace("*", "") for cell in row) for row in bars_rows(samples) if row[1] != "–"]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def better(facts, samples):
    """By part and peer: where its median is better than ours by more than 5 %, how many times, and in how many cases."""
    lines = ["## Where a peer is better", "", "By more than 5 % in the median, how many times, and in how many of the cases measured with both.", ""]
    for name, module in PARTS.items():
        for peer in samples.distinct("system", workload=name):
            found = [text for metric in METRICS if (text := better_in(samples, name, metric, peer))]
            if peer != "outbox" and found:
                lines.append(f"- {module.TITLE}: **{facts['systems'][peer]['title']}** in {'; '.join(found)}.")
    if len(lines) == 4:
        lines.append("Nowhere in this run.")
    return "\n".join(lines) + "\n"


def better_in(samples, name, metric, peer):
    title, _, _, more = METRICS[metric]
    factors = {}
    for case in samples.distinct("case", workload=name, system=peer):
        if peer == "plain" and case.startswith(cost.LIFE):
            continue  # it delivers nothing
        ours = spread(samples.values(metric, workload=name, case=case, system="outbox"))
        theirs = spread(samples.values(metric, workload=name, case=case, system=peer))
        if ours and theirs and ours[0] and theirs[0]:
            factors[case] = theirs[0] / ours[0] if more else ours[0] / theirs[0]
    wins = {case: factor for case, factor in factors.items() if factor > 1.05}
    if not wins:
        return None
    low, high = min(wins.values()), max(wins.values())
    times = f"{high:.2f}×" if low == high else f"{low:.2f}–{high:.2f}×"
    where = f", {next(iter(wins))}" if len(wins) == 1 else f", {len(wins)} of {len(factors)} cases"
    return f"{title} ({times}{where if len(factors) > 1 else ''})"


def doc(module):
    return " ".join(module.__doc__.split())


def cell(metric, values):
    middle = spread(values)
    if middle is None:
        return "–"
    digits = METRICS[metric][2]
    text, low, high = (f"{value:,.{digits}f}" for value in middle)
    return f"{text} ({low}–{high})" if low != high else text


def part(output, facts, samples, name, module):
    lines = [f"## {module.TITLE}", "", doc(module), ""]
    for case in samples.distinct("case", workload=name):
        systems = samples.distinct("system", workload=name, case=case)
        used = [m for m in METRICS if samples_have(samples, name, case, m)]
        lines += [f"### {case[0].upper()}{case[1:]}", ""]
        lines += ["| system | " + " | ".join(f"{METRICS[m][0]}, {METRICS[m][1]}".strip(", ") for m in used) + " |"]
        lines += ["|---" * (len(used) + 1) + "|"]
        for system in systems:
            cells = [cell(m, samples.values(m, workload=name, case=case, system=system)) for m in used]
            lines.append(f"| {facts['systems'][system]['title']} | " + " | ".join(cells) + " |")
        for metric in CHARTS.get((name, case), ()):
            title = f"{case}: {METRICS[metric][0]}"
            rows = [
                (s, facts["systems"][s]["title"], spread(samples.values(metric, workload=name, case=case, system=s)))
                for s in systems
            ]
            lines += ["", chart(output, f"{name}-{case}", charts.bars(title, [row for row in rows if row[2]]), title)]
        lines.append("")
    return "\n".join(lines)


def samples_have(samples, name, case, metric):
    return bool(samples.values(metric, workload=name, case=case))


def held_part(output, facts, samples):
    lines = [f"## {held.TITLE}", "", doc(held), ""]
    lines += [f"Offered are {held.RATE:,} messages per second, {held.GROUP} per call; two workers claim up to 100. The run of a peer ends when"]
    lines += [f"it is more than {held.PATIENCE} seconds of load behind schedule: it has collapsed, and would only get slower. outbox is never"]
    lines += ["stopped. The table has the first and the last point of each line.", ""]
    for case in samples.distinct("case", workload="held"):
        systems = samples.distinct("system", workload="held", case=case)
        lines += [f"### {case[0].upper()}{case[1:]}", ""]
        for metric in CHARTS.get(("held", case), ()):
            series = {
                (system, facts["systems"][system]["title"]): [
                    (s["second"], s[metric])
                    for s in samples.of(workload="held", case=case, system=system)
                    if s[metric] is not None
                ]
                for system in systems
            }
            series = {key: points for key, points in series.items() if points}  # not every system shows its claims
            title, unit = METRICS[metric][:2]
            lines += [chart(output, f"held-{case}-{metric}", charts.lines(f"{case}: {title}", unit, series), title), ""]
        lines += ["| system | claim p50, ms | claim p99, ms | latency p50, ms | messages per second | left undelivered | ended |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for system in systems:
            points = samples.of(workload="held", case=case, system=system)
            (end,) = samples.of(workload="held-left", case=case, system=system)
            first, last = points[0], points[-1]
            shown = (("claim_p50", 2), ("claim_p99", 2), ("latency_p50", 0), ("rate", 0))
            cells = [arrow(first[m], last[m], d) for m, d in shown]
            cells += [f"{end['left']:,} of {end['offered']:,}", ended(end)]
            lines.append(f"| {facts['systems'][system]['title']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def ended(end):
    if end["seconds"] < end["wanted"]:
        return f"**at second {end['seconds']:.0f} of {end['wanted']:g}**: more than {held.PATIENCE} seconds of load behind"
    return f"after all {end['wanted']:g} seconds"


def arrow(first, last, digits):
    return " → ".join("–" if value is None else f"{value:,.{digits}f}" for value in (first, last))


def chart(output: Path, name, text, title):
    file = "".join(c if c.isalnum() else "-" for c in name.lower())
    while "--" in file:
        file = file.replace("--", "-")
    (output / f"{file}.svg").write_text(text)
    return f"![{title}]({file}.svg)"
