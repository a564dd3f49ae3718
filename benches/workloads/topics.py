"""Claims of 100 with all messages in one topic and with as many spread over many, one by one: from the topics by name,
one topic after the other, and from any, oldest first over all.
"""

from claims import Claims
from figures import percentile

TITLE = "Many topics"
CLAIMS = 20  # per round, by name and from any
WARM = 3
EACH = 140  # messages of each topic: enough for a claim by name when claims from any have taken their share


def run(bench):
    for system in bench.chosen(lambda s: s.name in bench.form.topics):
        names = {topics: f"{system.name}-{topics}" for topics in bench.form.topics[system.name]}
        with bench.attempt(system):
            compare(bench, system, names)
        for name in names.values():
            bench.arena.drop(name)


def compare(bench, system, names):
    arena, count = bench.arena, EACH * max(names)
    for topics, name in names.items():
        system.create(arena, name)
        system.create_topics(arena, name, topics)
        arena.sql(system.fill(count, topics=topics), name)
        arena.sql("VACUUM ANALYZE", name)
    arena.settle()
    ways = ["by name", "any"] if system.claim(100, None) else ["by name"]
    clients = {(way, topics): Claims(arena, name, system, topics, way == "any") for way in ways for topics, name in names.items()}
    for _ in range(WARM):
        for claims in clients.values():
            claims.once()
    for round in range(bench.form.rounds):
        took = {key: [] for key in clients}
        for _ in range(CLAIMS):
            for key, claims in clients.items():
                took[key].append(claims.once())
        for (way, topics), times in took.items():
            case = f"{'one' if way == 'by name' else 'any'} of {topics:,} topic{'s' * (topics > 1)}"
            bench.samples.add("topics", case, system.name, round, claim_p50=percentile(times, 0.5), claim_p99=percentile(times, 0.99))
    for claims in clients.values():
        claims.close()
    bench.say(f"topics: {system.title}: {', '.join(f'{n:,}' for n in names)}")
