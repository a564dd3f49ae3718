"""Samples in, figures out: medians, spread, and medians of the ratios within one round.

A sample is a dict: workload, case, system, round, and one number per metric. Systems are measured in turn, round after
round, so what disturbs the machine for a while disturbs all of them; a ratio compares two of the same round only.
"""

from statistics import median

METRICS = {  # name: (title, unit, digits, is more better?)
    "rate": ("messages per second", "/s", 0, True),
    "wal": ("WAL per message", "B", 0, False),
    "cpu": ("server CPU per message", "µs", 1, False),
    "backend": ("CPU of the clients' backends per message", "µs", 1, False),
    "claim_p50": ("claim, median", "ms", 3, False),
    "empty_p50": ("the same when empty", "ms", 3, False),
    "growth": ("grown / empty", "×", 2, False),
    "claim_p99": ("claim, 99th percentile", "ms", 3, False),
    "claim_max": ("longest claim", "ms", 1, False),
    "claim_cpu_max": ("longest claim by CPU", "ms", 1, False),
    "again_p50": ("lease's end to taken again, median", "ms", 0, False),
    "again_p99": ("lease's end to taken again, 99th percentile", "ms", 0, False),
    "behind": ("not delivered", "s of load", 2, False),
    "latency_p50": ("scheduled to completed, median", "ms", 1, False),
    "latency_p99": ("scheduled to completed, 99th percentile", "ms", 1, False),
    "hands_p50": ("append to the client's hands, median", "ms", 2, False),
    "hands_p99": ("append to the client's hands, 99th percentile", "ms", 2, False),
    "hands_max": ("append to the client's hands, longest", "ms", 1, False),
    "rows_p50": ("commit to rows, median", "µs", 0, False),
    "rows_p99": ("commit to rows, 99th percentile", "µs", 0, False),
    "read_p50": ("read of the view, median", "ms", 1, False),
    "read_max": ("read of the view, longest", "ms", 1, False),
    "core": ("server CPU", "% of a core", 2, False),
    "wakeups": ("wake-ups per message", "", 2, False),
    "dead": ("dead rows left per message", "", 2, False),
    "size": ("size on disk after, per message", "B", 0, False),
}


class Samples(list):
    indexed = 0  # how many of them `by` has

    def add(self, workload, case, system, round, **metrics):
        self.append({"workload": workload, "case": case, "system": system, "round": round, **metrics})

    def of(self, **what):
        if self.indexed != len(self):
            self.by, self.indexed = {}, len(self)
            for sample in self:
                self.by.setdefault(sample["workload"], []).append(sample)
        some = self.by.get(what["workload"], []) if "workload" in what else self
        return [s for s in some if all(s.get(key) == value for key, value in what.items())]

    def values(self, metric, **what):
        return [s[metric] for s in self.of(**what) if s.get(metric) is not None]

    def distinct(self, key, **what):
        return list(dict.fromkeys(s[key] for s in self.of(**what)))

    def ratios(self, metric, over, under):
        """Per round, `over` / `under`; both name workload, case and system."""
        below = {s["round"]: s[metric] for s in self.of(**under) if s.get(metric)}
        pairs = [(s[metric], below.get(s["round"])) for s in self.of(**over) if s.get(metric) is not None]
        return [a / b for a, b in pairs if b]


def spread(values):
    """(median, lowest, highest), or None without values."""
    return (median(values), min(values), max(values)) if values else None


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None
