"""A dump takes everything along: messages in all five states, leases whose tokens still count, what operators set for
topics, consumers' markers, and the sequence that numbers arrivals. So do pg_dumpall and pg_upgrade.
"""

import subprocess
import uuid

import psycopg
import pytest
import setup
from conftest import append, check_storage, claim, long_ago, one, rows, states, value
from server import Server

CONF = {"shared_preload_libraries": "outbox", "outbox.purge_interval_seconds": 0}
BATCH = '[{"type": "t", "payload": 1}, {"type": "t", "payload": 2}]'
EVERYTHING = "SELECT * FROM outbox.message ORDER BY id"


class Filled:
    """A database with something of everything; what is needed to go on with it elsewhere."""

    def __init__(self, db):
        db.execute("INSERT INTO outbox.topic (topic, max_attempts, retention_days) VALUES ('strict', 1, 3)")
        self.delivered, self.leased, self.dead, self.failed, self.strict = (
            append(db, topic, payload='{"n": [1e400, "\\u00fc"]}', key="k", headers='{"traceparent": "00"}')
            for topic in ("orders", "orders", "orders", "orders", "strict")
        )
        leases = {m.id: m for m in claim(db, owner="somebody", lease_seconds=43200)}
        assert value(db, "complete", leases[self.delivered].token)
        assert value(db, "abandon", leases[self.dead].token, "gave up")
        assert value(db, "fail", leases[self.failed].token, "try later", "2100-01-01") == "waiting"
        self.token, self.strict_token = leases[self.leased].token, leases[self.strict].token
        self.delayed = append(db, available_at="2100-01-01")
        self.ready = rows(db, "append_batch", "orders", BATCH)
        self.head, self.behind = append(db, "chained", key="k"), append(db, "chained", key="k")
        (self.head_token,) = [m.token for m in claim(db, "chained", batch_size=1, lease_seconds=43200)]
        assert claim(db, "chained") == [] and one(db, "SELECT count(*) FROM outbox.delivery WHERE place = 'k'") == 1
        assert value(db, "consume_once", "mail", self.delivered)
        for role in "teller", "boss":
            if not one(db, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %s)", role):
                db.execute(f"CREATE ROLE {role}")
        for role, capability in ("teller", "producer:orders"), ("teller", "monitor"), ("boss", "operator"):
            value(db, "grant_access", role, capability)
        self.rows = db.execute(EVERYTHING).fetchall()
        self.markers = db.execute("TABLE outbox.processed").fetchall()
        assert {row[-1] for row in self.rows} == {"ready", "leased", "waiting", "delivered", "dead"}

    def is_whole_in(self, db):
        assert db.execute(EVERYTHING).fetchall() == self.rows
        assert db.execute("TABLE outbox.processed").fetchall() == self.markers

    def gives_access_in(self, db):
        assert rights(db) == [("boss", "operator", "*"), ("teller", "monitor", "*"), ("teller", "producer", "orders")]
        with db.transaction(force_rollback=True):
            db.execute("SET LOCAL ROLE boss")
            value(db, "grant_access", "teller", "worker:orders")
            db.execute("SET LOCAL ROLE teller")
            append(db, "orders")
            assert len(claim(db, "orders")) > 0
            db.execute("SELECT * FROM outbox.stats, outbox.status")
            for refused in "append", "claim", "message":
                with pytest.raises(psycopg.errors.InsufficientPrivilege), db.transaction():
                    if refused == "append":
                        append(db, "bills")
                    elif refused == "claim":
                        claim(db)
                    else:
                        db.execute("SELECT * FROM outbox.message")

    def goes_on_in(self, db):
        self.is_whole_in(db)
        self.gives_access_in(db)
        assert value(db, "complete", self.token)
        assert not value(db, "complete", self.token)
        assert value(db, "fail", self.strict_token, "no") == "dead"  # the topic allows one attempt
        assert not value(db, "consume_once", "mail", self.delivered)
        assert append(db, id=self.delivered) == self.delivered
        assert claim(db, "chained") == [] and value(db, "complete", self.head_token)
        (behind,) = claim(db, "chained")
        assert behind.id == self.behind and value(db, "complete", behind.token)
        assert value(db, "retry_dead", self.dead)
        new = append(db)
        batch = [row[0] for row in rows(db, "append_batch", "orders", BATCH)]
        arrived = [self.dead, *(r[0] for r in self.ready), new, *batch]
        leased = claim(db, "orders", batch_size=500)
        assert [m.id for m in leased] == arrived
        assert all(done for _, done in rows(db, "complete_batch", [m.token for m in leased]))
        assert states(db)[self.delayed] == states(db)[self.failed] == "waiting"
        long_ago(db)
        assert value(db, "purge") == len(arrived) + 5


def rights(db):
    return db.execute("SELECT role, capability, topic FROM outbox.access ORDER BY 1, 2, 3").fetchall()


@pytest.fixture
def filled(db):
    return Filled(db)


@pytest.mark.parametrize("form", ["custom", "directory", "plain"])
def test_dump_and_restore(server, database, db, filled, form):
    place = server.folder(f"dump {form}") / "it"
    server.as_user("pg_dump", f"--format={form}", "-f", place, database)
    server.createdb("restored")
    try:
        if form == "plain":
            server.as_user("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", "restored", "-f", place)
        else:
            server.as_user("pg_restore", "--exit-on-error", "-d", "restored", place)
        with server.connect("restored", autocommit=True) as restored:
            filled.goes_on_in(restored)
        filled.goes_on_in(db)  # the dump changed nothing
    finally:
        server.psql("DROP DATABASE restored WITH (FORCE)")


def test_a_parallel_restore_of_data_alone(server, database, db, filled):
    """Into a database where the extension was created anew."""
    place = server.folder("only data") / "it"
    server.as_user("pg_dump", "--format=directory", "-f", place, database)
    server.createdb("fresh", extension="outbox")
    server.as_user("pg_restore", "--exit-on-error", "--data-only", "--jobs=2", "-d", "fresh", place)
    with server.connect("fresh", autocommit=True) as fresh:
        filled.goes_on_in(fresh)
    server.psql("DROP DATABASE fresh WITH (FORCE)")


def test_a_dump_beside_a_working_queue_is_one_moment(server, database, db, filled):
    """No message is in it twice or in half: every delivery and receipt has its envelope, none has both."""
    place = server.folder("busy") / "it"
    command = ["pgbench", "-n", "-c", "2", "-T", "60", "-f", "/dev/stdin", database]
    script = """SELECT outbox.append('busy', 'placed', '1');
        SELECT count(outbox.complete(token)) FROM outbox.claim('w', 'busy', 3);"""
    busy = subprocess.Popen(
        [server.bin(command[0]), *command[1:]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=server.env, text=True,
    )
    busy.stdin.write(script)
    busy.stdin.close()
    for number in range(3):
        server.as_user("pg_dump", "--format=custom", "-f", f"{place}{number}", database)
        server.createdb("moment")
        server.as_user("pg_restore", "--exit-on-error", "-d", "moment", f"{place}{number}")
        with server.connect("moment", autocommit=True) as moment:
            check_storage(moment)
            assert append(moment, id=uuid.uuid4())
        server.psql("DROP DATABASE moment WITH (FORCE)")
    assert busy.poll() is None
    busy.terminate()
    busy.wait()
    assert "busy" in {row[1] for row in db.execute(EVERYTHING)}


def test_a_role_may_dump_only_what_it_may_read(server, database, db, filled):
    """Tables belong to the owner; a dump by somebody else fails instead of leaving messages out."""
    db.execute("CREATE ROLE reader LOGIN")
    done = subprocess.run(
        [server.bin("pg_dump"), "-U", "reader", database], env=server.env, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "permission denied" in done.stderr or "SELECT privilege" in done.stderr  # since 18
    db.execute("DROP ROLE reader")


RESTORES = {
    "exit on error": ["pg_restore", "--exit-on-error", "-d", "moved"],
    "one transaction": ["pg_restore", "--single-transaction", "-d", "moved"],
    "parallel": ["pg_restore", "--exit-on-error", "--jobs=2", "-d", "moved"],
    "no privileges": ["pg_restore", "--exit-on-error", "--no-privileges", "-d", "moved"],
    "plain": ["psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-1", "-d", "moved", "-f"],
}


def may_append(db, role):
    """The topics of three to which a role may append."""
    allowed = []
    for topic in "orders", "bills", "other":
        try:
            with db.transaction(force_rollback=True):
                db.execute(f"SET LOCAL ROLE {role}")
                append(db, topic)
                allowed.append(topic)
        except psycopg.errors.InsufficientPrivilege:
            pass
    return allowed


@pytest.fixture(scope="module")
def elsewhere():
    """A server that knows other roles."""
    with Server(conf=CONF) as new:
        for role in "till", "stranger":
            new.psql(f"CREATE ROLE {role}")
        yield new


@pytest.mark.parametrize("way", RESTORES)
def test_a_restore_where_a_role_is_missing(server, database, db, elsewhere, way):
    """Everything else is there, the rights of other roles too, and the missing one's come with the role."""
    for role in "shop", "till":
        db.execute(f"CREATE ROLE {role}")
    for role, capability in ("shop", "producer:orders"), ("shop", "operator"), ("till", "producer:bills"):
        value(db, "grant_access", role, capability)
    append(db)
    place = server.folder(f"roles {way}") / "it"
    plain = RESTORES[way][0] == "psql"
    form = "plain" if plain else "directory"
    server.as_user("pg_dump", f"--format={form}", "-f", place, database)
    db.execute("DROP OWNED BY shop, till")
    db.execute("DROP ROLE shop, till")
    copy = elsewhere.folder(f"roles {way}") / "it"
    copy_tree(place, copy)
    elsewhere.createdb("moved")
    try:
        elsewhere.as_user(*RESTORES[way], copy)
        with elsewhere.connect("moved", autocommit=True) as moved:
            assert list(states(moved).values()) == ["ready"]
            assert may_append(moved, "till") == ["bills"] and may_append(moved, "stranger") == []
            check = "SELECT ok, detail FROM outbox.status WHERE name = 'access'"
            ok, detail = moved.execute(check).fetchone()
            assert not ok and "shop" in detail and "till" not in detail
            moved.execute("CREATE ROLE shop")
            assert may_append(moved, "shop") == []
            value(moved, "purge")
            assert may_append(moved, "shop") == ["orders"] and may_append(moved, "till") == ["bills"]
            with moved.transaction(force_rollback=True):
                moved.execute("SET LOCAL ROLE shop")
                value(moved, "pause", "orders")
            assert moved.execute(check).fetchone()[0]
            moved.execute("DROP OWNED BY shop")
            moved.execute("DROP ROLE shop")
    finally:
        elsewhere.psql("DROP DATABASE moved WITH (FORCE)")


def copy_tree(source, target):
    """Files of one cluster for another, whose user may differ."""
    for file in [source, *source.rglob("*")] if source.is_dir() else [source]:
        where = target / file.relative_to(source)
        if file.is_dir():
            where.mkdir(exist_ok=True)
            where.chmod(0o755)
        else:
            where.write_bytes(file.read_bytes())
            where.chmod(0o644)


def test_a_dump_after_roles_have_changed(server, database, db):
    """It names roles as they are called now, or not at all: none inherits the rights of another."""
    for role in "renamed", "dropped", "remade", "kept":
        db.execute(f"CREATE ROLE {role}")
        value(db, "grant_access", role, "producer:orders")
    db.execute("DROP OWNED BY dropped, remade")
    db.execute("DROP ROLE dropped, remade")
    db.execute("ALTER ROLE renamed RENAME TO new_name")
    for role in "remade", "renamed":
        db.execute(f"CREATE ROLE {role}")
    assert [may_append(db, role) for role in ("new_name", "kept")] == [["orders"]] * 2
    assert [may_append(db, role) for role in ("remade", "renamed")] == [[]] * 2
    place = server.folder("changed roles") / "it"

    def moved():
        server.as_user("pg_dump", "--format=custom", "-f", place, database)
        server.createdb("changed")
        server.as_user("pg_restore", "--single-transaction", "-d", "changed", place)
        with server.connect("changed", autocommit=True) as db:
            given = {role: may_append(db, role) for role in ("kept", "new_name", "remade", "renamed")}
        server.psql("DROP DATABASE changed")
        return [role for role, topics in given.items() if topics]

    assert moved() == ["kept"]
    value(db, "purge")
    assert moved() == ["kept", "new_name"]
    db.execute("DROP OWNED BY new_name, kept")
    db.execute("DROP ROLE new_name, kept, remade, renamed")


def test_dumpall_into_a_new_cluster(server, database, db, filled):
    place = server.folder("all") / "it"
    server.as_user("pg_dumpall", "-f", place)
    with Server(conf=CONF) as new:
        copy = new.folder("all") / "it"
        copy.write_bytes(place.read_bytes())
        new.as_user("psql", "-Xq", "-d", "postgres", "-f", copy)  # complains that the superuser exists
        with new.connect(database, autocommit=True) as restored:
            filled.goes_on_in(restored)


@pytest.mark.parametrize("mode", ["--copy", "--link"])
def test_pg_upgrade(mode):
    with Server(conf=CONF) as old, Server(conf=CONF) as new:
        old.createdb("app", extension="outbox")
        with old.connect("app", autocommit=True) as db:
            filled = Filled(db)
        old.stop()
        new.stop()
        mode = [] if mode == "--copy" else [mode]  # copying is the default, and has no option before 17
        command = ["pg_upgrade", "-b", old.bindir, "-B", new.bindir, "-d", old.data, "-D", new.data]
        command += ["-U", "postgres", "-s", new.socket, *mode]
        done = subprocess.run(
            [new.bin(command[0]), *map(str, command[1:])], cwd=new.folder("upgrade"), env=new.env,
            capture_output=True, text=True, **setup.as_server_user(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        new.start()
        with new.connect("app", autocommit=True) as db:
            filled.goes_on_in(db)


def test_drop_extension_takes_everything_and_a_dump_of_the_rest_works(server, database, db, filled):
    db.execute("DROP EXTENSION outbox")
    assert one(db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'") == 0
    with pytest.raises(psycopg.errors.InvalidSchemaName):
        value(db, "purge")
    server.as_user("pg_dump", "-f", server.folder("rest") / "it", database)
