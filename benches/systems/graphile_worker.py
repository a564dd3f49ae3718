"""graphile-worker: jobs are added by its SQL functions, and worked off by its own runtime in Node."""

from math import gcd

import pace
import payload
from systems.in_node import InNode

JOB = f"graphile_worker.add_job('{payload.TOPIC}'"


class GraphileWorker(InNode):
    name = "graphile-worker"
    title = "graphile-worker"
    api = "SQL add_job, add_jobs; run() with localQueue of 500, 24 jobs at once over up to 10 connections, batched completion, counted when handed to the batch; done jobs are deleted"
    driver = "graphile_worker.mjs"
    keeps_history = False
    append = f"SELECT {JOB}, :payload::json);\n"
    append_many = f"""SELECT count(*) FROM graphile_worker.add_jobs(
    ARRAY(SELECT ('{payload.TOPIC}', p, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec
            FROM unnest(:array::json[]) AS p));
"""
    pipe_append = f"""
        SELECT count(*) FROM graphile_worker.add_jobs(
            ARRAY(SELECT ('{payload.TOPIC}', p, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec
                    FROM unnest(%s::json[]) AS p))"""
    clear = "TRUNCATE graphile_worker._private_jobs"
    unfinished = "SELECT count(*) FROM graphile_worker._private_jobs"
    tables = "schemaname = 'graphile_worker'"

    def create(self, arena, database):
        arena.create(database)
        self.node(arena, database, "migrate")

    def fill(self, count, size=300, topics=1):
        batch = gcd(100, count)
        return f"""
            SELECT count(*) FROM (
                SELECT graphile_worker.add_jobs(
                    ARRAY(SELECT ('{payload.TOPIC}', $p${payload.one(size)}$p$, NULL, NULL, NULL, NULL, NULL, NULL)
                                     ::graphile_worker.job_spec
                            FROM generate_series(1, {batch})))
                  FROM generate_series(1, {count // batch})) AS added"""

    def claim(self, count, topic=payload.NAME):
        return "in Node" if count in (1, 100) and topic else None  # one by one, or as fast as it can

    def processes(self):
        return [pace.produce, self.paced("work")]

    def run_deliver(self, arena, database, batch, clients, messages, sync):
        return self.node(arena, database, "deliver", sync, batch=batch, clients=clients, messages=messages)
