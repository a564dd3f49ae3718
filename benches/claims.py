"""Times claims one by one, from a client that is connected once: the statement as a worker sees it."""

import time


class Claims:
    def __init__(self, arena, database, system, batch=100, any_topic=False):
        self.connection = arena.connect(database)
        self.connection.prepare_threshold = 0
        self.connection.execute("SET synchronous_commit = off")
        self.claim = system.claim(batch, any_topic).replace("\\gset\n", "")
        self.complete = system.complete(batch).replace(":ids", "%s").strip().rstrip(";")

    def once(self):
        """Claims, completes, and returns how many milliseconds the claim took."""
        began = time.perf_counter()
        (ids,) = self.connection.execute(self.claim).fetchone()
        took = (time.perf_counter() - began) * 1000
        if not ids:
            raise RuntimeError("a claim found nothing, so it measures nothing")
        self.connection.execute(self.complete, [ids])
        return took

    def close(self):
        self.connection.close()
