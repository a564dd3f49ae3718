"""Claims on any topic, with all messages in one topic and with as many spread over many."""

from claims import Claims
from figures import percentile

TITLE = "Many topics"
CLAIMS = 20
WARM = 10


def run(bench):
    arena, rounds = bench.arena, bench.form.rounds + 2
    for system in bench.chosen(lambda s: s.claim and s.name in bench.form.topic_systems):
        names = {topics: f"{system.name}-{topics}" for topics in bench.form.topics}
        for topics, name in names.items():
            arena.drop(name)
            system.create(arena, name)
            arena.sql(system.fill(rounds * (CLAIMS + WARM) * 100, topics=topics), name)
            arena.sql("VACUUM ANALYZE", name)
        arena.settle()
        clients = {topics: Claims(arena, name, system, any_topic=True) for topics, name in names.items()}
        for _ in range(WARM):
            for claims in clients.values():
                claims.once()
        for round in range(rounds):
            took = {topics: [] for topics in clients}
            for _ in range(CLAIMS):
                for topics, claims in clients.items():
                    took[topics].append(claims.once())
            for topics, times in took.items():
                case = f"any of {topics:,} topic{'s' * (topics > 1)}"
                bench.samples.add("topics", case, system.name, round, claim_p50=percentile(times, 0.5))
        for topics, claims in clients.items():
            claims.close()
            arena.drop(names[topics])
        bench.say(f"topics: {system.title}")
