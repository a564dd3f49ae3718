"""What outbox promises itself: each bar is a ratio or a figure of this run, its bound, and how far we would like to get."""

from dataclasses import dataclass
from statistics import median

from workloads import append, drain, keys, latency, soak, trigger
from workloads.cost import LIFE

SYNC = "4 clients, synchronous commit on"
ASYNC = "4 clients, synchronous commit off"
HUNDRED = "by 100, 1 client, synchronous commit off"
SINGLE = "by 1, 1 client, synchronous commit off"


@dataclass
class Bar:
    what: str
    values: list  # of the rounds
    bound: float
    stretch: float = None
    at_most: bool = False
    by_cpu: list = ()  # the same ratio by server CPU per message, which a busy machine disturbs less

    @property
    def value(self):
        return median(self.values) if self.values else None

    @property
    def verdict(self):
        if self.value is None:
            return "not measured"
        met = self.value <= self.bound if self.at_most else self.value >= self.bound
        return "met" if met else "**not met**"


def bars(samples):
    def ratio(workload, case, metric, over, under, under_case=None):
        left = {"workload": workload, "case": case, "system": over}
        return samples.ratios(metric, left, {"workload": workload, "case": under_case or case, "system": under})

    def faster(what, bound, stretch, workload, case, peer, peer_case=None):
        rates = ratio(workload, case, "rate", "outbox", peer, peer_case)
        cpu = [1 / r for r in ratio(workload, case, "cpu", "outbox", peer, peer_case) if r]
        return Bar(what, rates, bound, stretch, by_cpu=cpu)

    own_id = ASYNC + ", caller's id"
    yield faster("append / plain INSERT, synchronous commit on, 4 clients", 0.90, 1.0, "append", SYNC, "plain")
    yield faster("append / plain INSERT, synchronous commit off, 4 clients", 0.78, 0.9, "append", ASYNC, "plain")
    yield faster("the same with a caller's id, a uuid key in both", 0.70, 0.8, "append", own_id, "plain")
    yield faster("with a caller's id / plain INSERT with a bigint key", 0.70, 0.8, "append", own_id, "plain", ASYNC)
    json = "append_batch of 100 / INSERT … SELECT of the same JSON"
    yield faster(json, 0.62, 0.8, "batch", "synchronous commit off", "plain")
    yield faster("claim 100 + complete 100 / PGMQ read + archive", 3.5, 6, "deliver", HUNDRED, "pgmq")
    yield faster("claim 100 + complete 100 / PGMQ read + delete", 2.7, 4.5, "deliver", HUNDRED, "pgmq-delete")
    yield faster("claim 1 + complete 1 / PGMQ read 1 + archive 1", 1.2, None, "deliver", SINGLE, "pgmq")
    for what, bound in keys.BOUNDS.items():
        yield faster(f"{what}, with a key / without", bound, None, "keys", f"{what}, {keys.WITH}", "outbox", f"{what}, {keys.WITHOUT}")
    wal = ratio("cost", LIFE, "wal", "outbox", "plain")
    yield Bar("WAL of append + claim + complete by 100 / plain INSERT by 100", wal, 1.9, 1.6, True)
    for hold in ("snapshot", "idle writer"):
        yield Bar(f"{hold} held: claim p50 of the last tenth / first", [*held(samples, hold)], 1.15, at_most=True)
        backlog = [s["left"] / s["offered"] for s in samples.of(workload="held-left", case=f"{hold} held", system="outbox")]
        yield Bar(f"{hold} held: left undelivered / offered", backlog, 0.01, at_most=True)
    for case in samples.distinct("case", workload="growth", system="outbox"):
        grown = samples.values("growth", workload="growth", case=case, system="outbox")
        yield Bar(f"claim p50 with {case} / empty", grown, 1.3, at_most=True)
    yield from waiting(samples, ratio)
    for case in samples.distinct("case", workload="views"):
        yield Bar(f"{case}: read, ms", samples.values("read_p50", workload="views", case=case), 50, at_most=True)
    for given in trigger.CASES:
        case = append.label(**given)
        yield faster(f"append / plain INSERT, a row trigger on both, {case}", 0.5, None, "trigger", case, "plain")
    yield from flat(samples)
    topics = ratio("topics", "any of 1,000 topics", "claim_p50", "outbox", "outbox", "any of 1 topic")
    yield Bar("claim on any of 1,000 topics / of one", topics, 3, at_most=True)


def flat(samples):
    """What must not grow with what has been delivered, where nothing that is over can be removed."""
    def of(metric, workload, case):
        return samples.values(metric, workload=workload, case=case)

    for case in dict.fromkeys(s["case"].rpartition(": part")[0] for s in samples.of(workload="drain")):
        first, last = (f"{case}: part {number} of {drain.PARTS}" for number in (1, drain.PARTS))
        rates = [b / a for a, b in zip(of("rate", "drain", first), of("rate", "drain", last))]
        cpu = [a / b for a, b in zip(of("backend", "drain", first), of("backend", "drain", last))]
        yield Bar(f"keyed drain beside a held snapshot, last sixth / first, {case}", rates, 0.85, by_cpu=cpu)
    for case in samples.distinct("case", workload="expiry"):
        yield Bar(f"lease's end to taken again, p99, ms, {case}", of("again_p99", "expiry", case), 1500, at_most=True)
        longest = Bar(f"longest claim, ms, {case}", of("claim_max", "expiry", case), 50, at_most=True)
        longest.by_cpu = of("claim_cpu_max", "expiry", case)
        yield longest
        yield Bar(f"never taken again, {case}", of("left", "expiry", case), 0, at_most=True)
    for case in samples.distinct("case", workload="soak"):
        for metric, what, bound in (("backend", "CPU per message", 1.1), ("behind", "not delivered", 1.2)):
            values = of(metric, "soak", case)
            early = median(values[soak.FROM : soak.TO])
            yield Bar(f"soak of {case}, {what}, end / sixth to tenth part", [v / early for v in values[-soak.LAST :]], bound, at_most=True)
        yield Bar(f"soak of {case}, left undelivered", of("left", "soak-left", case), 0, at_most=True)
    for what in samples.distinct("case", workload="soak-afterwards"):
        yield Bar(f"after the soak: {what}, ms", of("read_p50", "soak-afterwards", what), 50, at_most=True)


def waiting(samples, ratio):
    def at_most(what, bound, metric, case):
        return Bar(what, samples.values(metric, workload="latency", case=case, system="outbox"), bound, at_most=True)

    def beside(who, whom):
        return ratio("latency", latency.BESIDE.format(who), "rate", "outbox", "outbox", latency.BESIDE.format(whom))

    ours, theirs = f"{latency.IDLE}: {latency.WAITING}", f"{latency.IDLE}: {latency.LISTENING}"
    yield at_most("append call to the client's hands, idle, p50, ms", 1.5, "hands_p50", ours)
    yield at_most("append call to the client's hands, idle, p99, ms", 6, "hands_p99", ours)
    faster = ratio("latency", ours, "hands_p50", "outbox", "graphile-worker", theirs)
    yield Bar("the same, p50 / graphile-worker, which listens", faster, 1, at_most=True)
    for rate in latency.PAUSES:
        yield at_most(f"commit to rows in the server, {rate}, p50, µs", 80, "rows_p50", latency.SERVER.format(rate))
        yield at_most(f"commit to rows in the server, {rate}, p99, µs", 250, "rows_p99", latency.SERVER.format(rate))
    eight = latency.WHO_WAIT.format(8)
    yield Bar("append beside 8 waiting workers / beside no worker", beside(eight, latency.NOBODY), 0.93)
    yield Bar("append beside 8 waiting workers / beside 8 that poll every 100 ms", beside(eight, latency.WHO_ASK), 0.93)
    yield Bar("append beside 8 that wait for another topic / beside no worker", beside(latency.ELSEWHERE, latency.NOBODY), 0.93)
    yield at_most("50 sessions that wait, % of a core", 1, "core", latency.NOTHING)
    yield at_most("wake-ups per message, 50 workers", 3, "wakeups", latency.ONE_BY_ONE)


def held(samples, hold):
    """Each point of the last tenth of the run over the median of the first tenth."""
    points = samples.values("claim_p50", workload="held", case=f"{hold} held", system="outbox")
    if len(points) > 1:
        tenth = max(1, len(points) // 10)
        first = median(points[:tenth])
        yield from (point / first for point in points[-tenth:])
