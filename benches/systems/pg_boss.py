"""pg-boss: everything goes through its class in Node; its SQL is private."""

import payload
from systems.in_node import InNode


class PgBoss(InNode):
    name = "pg-boss"
    title = "pg-boss"
    api = "send, insert, fetch(batchSize, no priority), complete, fail, no maintenance; two loops under a paced load; done jobs stay until archived"
    driver = "pg_boss.mjs"
    append = append_many = pipe_append = "in Node"
    clear = "TRUNCATE pgboss.job CASCADE"
    unfinished = "SELECT count(*) FROM pgboss.job WHERE state < 'completed'"
    tables = "schemaname = 'pgboss'"

    def create(self, arena, database):
        arena.create(database)
        self.node(arena, database, "migrate")

    def fill(self, count, size=300, topics=1):
        return f"""
            INSERT INTO pgboss.job (name, data)
            SELECT '{payload.TOPIC}', $p${payload.one(size)}$p$ FROM generate_series(1, {count})"""

    def claim(self, count, topic=payload.NAME):
        return "in Node" if topic else None

    def append_one(self, connection):
        connection.execute(self.fill(1))

    def processes(self):
        return [self.paced("produce"), self.paced("work")]

    def run_append(self, arena, database, clients, seconds, sync, size=300, with_id=False):
        given = {"payload": payload.one(size), "clients": clients, "seconds": seconds}
        return self.node(arena, database, "append", sync, **given)

    def run_append_many(self, arena, database, count, seconds, sync, size=300):
        given = {"payload": payload.one(size), "count": count, "seconds": seconds}
        return self.node(arena, database, "append_many", sync, **given)

    def run_deliver(self, arena, database, batch, clients, messages, sync):
        return self.node(arena, database, "deliver", sync, batch=batch, clients=clients, messages=messages)
