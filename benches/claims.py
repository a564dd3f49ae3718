"""Times claims one by one, from a client that is connected once: the statement as a worker sees it."""

import time
from itertools import cycle

import payload


class Claims:
    """Claims of 100: from the topics by name, one after the other, or from any."""

    def __init__(self, arena, database, system, topics=1, any_topic=False):
        self.connection = arena.connect(database)
        self.connection.prepare_threshold = 0
        self.connection.execute("SET synchronous_commit = off")
        self.names = cycle(payload.TOPIC + str(number) for number in range(topics)) if topics > 1 else cycle([payload.TOPIC])
        topic = "%(topic)s"
        self.claim = system.claim(100, None if any_topic else topic).replace("\\gset\n", "")
        self.complete = system.complete(100, topic).replace(":ids", "%(ids)s").strip().rstrip(";")

    def once(self):
        """Claims, completes, and returns how many milliseconds the claim took."""
        topic = next(self.names)
        began = time.perf_counter()
        (ids,) = self.connection.execute(self.claim, {"topic": topic}).fetchone()
        took = (time.perf_counter() - began) * 1000
        if len(ids) != 100:
            raise RuntimeError(f"a claim found {len(ids)} messages, so it measures something else")
        self.connection.execute(self.complete, {"topic": topic, "ids": ids})
        return took

    def close(self):
        self.connection.close()
