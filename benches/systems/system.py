"""What a system must be able to say so that every workload can drive it.

Statements are pgbench scripts with named variables, or, for the pipe, psycopg statements. A system that cannot do
something leaves the statement None, and is left out of the workloads that need it.
"""

import pace
import payload
import pgbench


class System:
    name = ""  # in the results and on the command line
    title = ""  # in the report
    api = ""  # one sentence: which of its functions, which settings
    parallel = True  # may several workers take from one queue?
    keeps_history = True
    largest = 8000  # bytes of payload that it is measured with

    # pgbench: variables :payload, :json (objects of append_batch), :array (payloads)
    append = None
    append_with_id = None
    append_many = None

    # psycopg, for the pipe: parameters as %s
    pipe_append = None  # an array of payloads
    pipe_claim = None  # up to %s messages: (handle, payload)
    pipe_complete = None  # an array of handles
    pipe_fail = None  # the same: again in about a second
    pipe_hold = None  # take one and never answer

    clear = None  # back to empty
    unfinished = None  # how many messages are not delivered yet
    tables = None  # condition on pg_stat_user_tables: which tables are its own

    def prepare(self, environment):
        """Fetch what it needs; raise peers.Unavailable if that cannot be had. Returns its version."""
        raise NotImplementedError

    def create(self, arena, database):
        """A fresh database with the system in it."""
        raise NotImplementedError

    def claim(self, count, topic=payload.NAME):
        """Script: take up to `count` messages of a topic, an expression, or of any (None) into the variable :ids."""

    def complete(self, count, topic=payload.NAME):
        """Script: answer :ids, delivered."""

    def fill(self, count, size=300, topics=1):
        """SQL, one statement or more: make so many ready messages. With several topics they are TOPIC0, TOPIC1 …, in turn."""

    def create_topics(self, arena, database, topics):
        """For systems in which a topic is more than data."""

    def state(self, name, count):
        """SQL: bring about `count` rows that are `retained`, `backlog`, `delayed`, `leased` or `expired`."""

    def empty(self, arena, database):
        arena.sql(self.clear, database)

    def append_one(self, connection):
        connection.execute(self.pipe_append, [["{}"]])

    def processes(self):
        """What works under a load at a fixed pace; see pace.py."""
        return [pace.produce, pace.work, pace.work]

    # -- measuring; systems with a client of their own do it differently ---------------------

    def run_append(self, arena, database, clients, seconds, sync, size=300, with_id=False):
        script = self.append_with_id if with_id else self.append
        variables = {"payload": payload.one(size)}
        return pgbench.run(arena, database, script, clients, seconds=seconds, sync=sync, variables=variables)

    def run_append_many(self, arena, database, count, seconds, sync, size=300):
        variables = {}
        if ":json" in self.append_many:
            variables["json"] = payload.messages(count, size)
        if ":array" in self.append_many:
            variables["array"] = payload.array(count, size)
        return pgbench.run(arena, database, self.append_many, 1, seconds=seconds, sync=sync, variables=variables)

    def run_deliver(self, arena, database, batch, clients, messages, sync):
        script = self.claim(batch) + self.complete(batch)
        transactions = max(1, messages // batch // clients)
        return pgbench.run(arena, database, script, clients, transactions=transactions, sync=sync)

    def make_ready(self, arena, database, count, size=300):
        """`count` ready messages and nothing else, as they are soon after they were appended.

        The checkpoint is before that: messages are delivered long before the next one, in a queue that keeps up, and
        pages that were written since need no full image in the WAL.
        """
        self.empty(arena, database)
        arena.settle()
        arena.sql(self.fill(count, size), database)
        arena.sql("ANALYZE", database)
