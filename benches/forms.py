"""How long and how much: the short form, less than five minutes, and the full one."""

from dataclasses import dataclass, replace


@dataclass
class Form:
    rounds: int
    once: list  # systems that only the first round measures
    seconds: int  # of one measurement
    clients: dict  # append: by synchronous commit, the numbers of clients
    large: dict  # append: by size of the payload, the numbers of clients
    batch_sync: list
    deliver: list  # (synchronous commit, batch, clients, size)
    largest: dict  # deliver: by size, at most so many messages per measurement
    cost: dict  # by size, messages delivered
    cost_rounds: int
    topics: dict  # system: [topics]
    growth: dict  # system: {state: [rows]}
    pipe_rate: int
    pipe_seconds: int
    pipe_rounds: int
    latency_seconds: int  # latency: of each way to wait
    latency_busy: bool  # latency: at 1,000 messages per second too
    latency_rounds: int  # latency: of appenders beside workers, and of commit to rows
    one_by_one: int  # latency: messages that are sent one by one
    watched: int  # views: messages stored
    drained: int  # drain: messages
    drain_prepared: list  # drain: max_prepared_transactions
    expiry: tuple  # expiry: messages delivered before, seconds of load
    soak_seconds: int
    trigger_rounds: int
    held: dict  # what is held: {system: seconds}
    bucket: float  # held: seconds per point

    def lasting(self, seconds):
        """The same with this length; in `held`, of a whole run."""
        held = {hold: dict.fromkeys(runs, seconds) for hold, runs in self.held.items()}
        bucket = max(1.0, min(self.bucket, seconds / 3))
        return replace(
            self, seconds=seconds, pipe_seconds=seconds, soak_seconds=seconds, expiry=(self.expiry[0], seconds), held=held, bucket=bucket
        )


SHORT = Form(
    rounds=2,
    once=["pgq", "graphile-worker", "pg-boss"],
    seconds=1,
    clients={True: [4], False: [4]},
    large={},
    batch_sync=[False],
    deliver=[(False, 100, 1, 300), (False, 1, 1, 300)],
    largest={300: 50_000},
    cost={300: 10_000},
    cost_rounds=1,
    topics={"outbox": [1, 1000]},
    growth={
        "outbox": dict.fromkeys(["retained", "backlog", "delayed", "leased", "expired", "behind one key"], [100_000]),
        "pgmq": {"leased": [100_000]},
        "handwritten": {"delayed": [100_000]},
    },
    pipe_rate=500,
    pipe_seconds=2,
    pipe_rounds=1,
    latency_seconds=1,
    latency_busy=False,
    latency_rounds=1,
    one_by_one=300,
    watched=100_000,
    drained=120_000,
    drain_prepared=[10],
    expiry=(300_000, 15),
    soak_seconds=180,
    trigger_rounds=2,
    held={
        "snapshot": {"outbox": 12, "handwritten": 9, "pgmq": 9},
        "idle writer": {"outbox": 9},
    },
    bucket=3,
)

LARGE = {
    "retained": [100_000, 1_000_000, 10_000_000],
    "backlog": [100_000, 1_000_000, 10_000_000],
    "delayed": [100_000, 1_000_000, 10_000_000],
    "leased": [100_000],
    "expired": [100_000],
}
LESS = {state: [count for count in counts if count <= 1_000_000] for state, counts in LARGE.items()}
EVERYBODY = ["outbox", "handwritten", "pgmq", "pgmq-delete", "pgq", "graphile-worker", "pg-boss"]

FULL = Form(
    rounds=3,
    once=[],
    seconds=2,
    clients={True: [1, 2, 4, 16], False: [1, 2, 4, 16]},
    large={8000: [1, 4], 1_000_000: [1]},
    batch_sync=[True, False],
    deliver=[
        (False, 100, 1, 300), (False, 100, 4, 300), (False, 10, 1, 300), (False, 1, 1, 300),
        (True, 100, 1, 300), (True, 1, 4, 300), (False, 100, 1, 8000), (False, 1, 1, 1_000_000),
    ],  # fmt: skip
    largest={300: 100_000, 8000: 20_000, 1_000_000: 200},
    cost={300: 30_000, 8000: 10_000},
    cost_rounds=2,
    topics={"outbox": [1, 10, 1000], "handwritten": [1, 10, 1000], "pgmq": [1, 10, 1000]},
    growth={"outbox": LARGE | {"behind one key": [100_000]}, "handwritten": LESS, "pgmq": LESS},
    pipe_rate=1000,
    pipe_seconds=8,
    pipe_rounds=3,
    latency_seconds=10,
    latency_busy=True,
    latency_rounds=9,
    one_by_one=1000,
    watched=1_000_000,
    drained=600_000,
    drain_prepared=[0, 10],
    expiry=(3_000_000, 90),
    soak_seconds=3600,
    trigger_rounds=9,
    held={hold: dict.fromkeys(EVERYBODY, 600) for hold in ("snapshot", "idle writer")},
    bucket=10,
)
