"""A row trigger on the table that is appended to, as people put there for an audit: the same AFTER INSERT trigger on
`outbox.envelope` and on the table of the plain INSERT, one message per transaction. Each counts in a sequence; a run in which it
has not counted every message is a failure, not a figure.
"""

from workloads import append

TITLE = "Append to a table with a row trigger"
CASES = [{"clients": clients, "sync": False} for clients in (1, 4)]
TABLES = {"outbox": "outbox.envelope", "plain": "plain"}
TRIGGER = """
    CREATE SEQUENCE seen;
    CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('public.seen'); RETURN NULL; END $$;
    CREATE TRIGGER see AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION see()"""


def run(bench):
    systems = bench.chosen(lambda s: s.name in TABLES)
    names = {system.name: f"{system.name}-trigger" for system in systems}
    for system in systems:
        system.create(bench.arena, names[system.name])
        bench.arena.sql(TRIGGER.format(TABLES[system.name]), names[system.name])
    for case in CASES:
        for round, system in bench.turns(lambda s: s in systems, bench.form.trigger_rounds):
            with bench.attempt(system, append.label(**case)):
                one(bench, system, names[system.name], case, round)
    for name in names.values():
        bench.arena.drop(name)


def one(bench, system, database, case, round):
    arena = bench.arena
    system.empty(arena, database)
    arena.sql("ALTER SEQUENCE seen RESTART", database)
    arena.settle()
    done = system.run_append(arena, database, seconds=bench.form.seconds, **case)
    seen = int(arena.sql("SELECT nextval('seen') - 1", database))
    if seen != done.transactions:
        raise RuntimeError(f"the trigger has seen {seen} of {done.transactions} messages")
    bench.sample("trigger", append.label(**case), system, round, done, done.transactions)
