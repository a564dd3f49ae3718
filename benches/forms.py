"""How long and how much: the short form, less than five minutes, and the full one."""

from dataclasses import dataclass, replace

EVERY_STATE = ["retained", "backlog", "delayed", "leased", "expired"]


@dataclass
class Form:
    rounds: int
    once: list  # systems that only the first round measures
    seconds: int  # of one measurement
    clients: dict  # append: by synchronous commit, the numbers of clients
    large: list  # append of 8 kB: the numbers of clients
    batch_sync: list
    deliver: list  # (synchronous commit, batch, clients)
    largest: int  # deliver: at most so many messages per measurement
    messages: int  # cost: delivered
    cost_rounds: int
    topics: list
    topic_systems: list
    growth: dict  # system: {state: [rows]}
    pipe_systems: list
    pipe_rate: int
    pipe_seconds: int
    held: dict  # what is held: {system: seconds}
    bucket: float  # held: seconds per point

    def lasting(self, seconds):
        """The same with this length; in `held`, of a whole run."""
        held = {hold: {name: seconds for name in runs} for hold, runs in self.held.items()}
        bucket = max(1.0, min(self.bucket, seconds / 3))
        return replace(self, seconds=seconds, pipe_seconds=seconds, held=held, bucket=bucket)


SHORT = Form(
    rounds=3,
    once=["pgq", "graphile-worker", "pg-boss"],
    seconds=1,
    clients={True: [4], False: [4]},
    large=[],
    batch_sync=[False],
    deliver=[(False, 100, 1), (False, 1, 1)],
    largest=150_000,
    messages=10_000,
    cost_rounds=1,
    topics=[1, 1000],
    topic_systems=["outbox"],
    growth={
        "outbox": {state: [100_000] for state in EVERY_STATE},
        "pgmq": {"backlog": [100_000], "leased": [100_000]},
        "handwritten": {"delayed": [100_000]},
    },
    pipe_systems=["outbox", "handwritten", "pgmq"],
    pipe_rate=500,
    pipe_seconds=2,
    held={
        "snapshot": {"outbox": 30, "handwritten": 12, "pgmq": 12},
        "idle writer": {"outbox": 12},
    },
    bucket=3,
)

LARGE = {
    "retained": [100_000, 1_000_000, 10_000_000],
    "backlog": [100_000, 1_000_000],
    "delayed": [100_000, 1_000_000],
    "leased": [100_000],
    "expired": [100_000],
}
LESS = {state: [count for count in counts if count <= 1_000_000] for state, counts in LARGE.items()}
DELIVER = [(False, 100, 1), (False, 100, 4), (False, 10, 1), (False, 1, 1), (False, 1, 4), (True, 100, 1), (True, 1, 4)]

FULL = Form(  # about two and a half hours on two cores
    rounds=5,
    once=[],
    seconds=4,
    clients={True: [1, 2, 4, 16], False: [1, 2, 4, 16]},
    large=[1, 4],
    batch_sync=[True, False],
    deliver=DELIVER,
    largest=300_000,
    messages=100_000,
    cost_rounds=3,
    topics=[1, 10, 1000],
    topic_systems=["outbox", "handwritten"],
    growth={"outbox": LARGE, "handwritten": LESS, "pgmq": LESS},
    pipe_systems=["outbox", "handwritten", "pgmq", "pgmq-delete"],
    pipe_rate=1000,
    pipe_seconds=20,
    held={
        "snapshot": {"outbox": 600, "handwritten": 300, "pgmq": 300},
        "idle writer": {"outbox": 600, "handwritten": 300, "pgmq": 300},
    },
    bucket=10,
)
