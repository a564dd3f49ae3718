"""Sessions that are not what a client thinks: statements of one client spread over the connections of a pool, and
sessions that have cached what somebody else drops, recreates or updates meanwhile.
"""

import itertools
import uuid

import psycopg
import pytest
from conftest import CALLS, append, check_storage, claim, one, rows, sqlstate, states, until, value



@pytest.fixture
def connect(server, database):
    """A function that makes further connections; they are closed in the end."""
    made = []

    def connect(**options):
        made.append(server.connect(database, autocommit=True, **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def a_life_of_a_message(sessions):
    """All calls of one client, each statement on the next of `sessions`."""
    delivered, dead = (append(next(sessions), payload=str(n)) for n in range(2))
    first, second = claim(next(sessions))
    assert value(next(sessions), "extend", first.token, 60) > first.leased_until
    assert value(next(sessions), "consume_once", "mail", first.id)
    assert not value(next(sessions), "consume_once", "mail", first.id)
    assert value(next(sessions), "complete", first.token)
    assert not value(next(sessions), "complete", first.token)
    assert value(next(sessions), "fail", second.token, "no", "2020-01-01") == "waiting"
    (again,) = claim(next(sessions))
    assert (again.id, again.attempts) == (second.id, 2)
    assert value(next(sessions), "release", again.token)
    (again,) = claim(next(sessions))
    assert again.attempts == 2
    assert value(next(sessions), "abandon", again.token)
    assert value(next(sessions), "retry_dead", again.id)
    assert value(next(sessions), "complete", claim(next(sessions))[0].token)
    assert value(next(sessions), "purge") == 0
    assert states(next(sessions)) == {delivered: "delivered", dead: "delivered"}


def test_statements_of_one_client_on_any_connection(connect):
    sessions = itertools.cycle([connect() for _ in range(3)])
    a_life_of_a_message(sessions)


@pytest.mark.parametrize("reset", ["DISCARD ALL", "RESET ALL", "DEALLOCATE ALL"])
def test_sessions_that_are_reset_between_transactions(connect, reset):
    def sessions():
        for connection in itertools.cycle([connect(prepare_threshold=None) for _ in range(2)]):
            yield connection
            connection.execute(reset)

    a_life_of_a_message(sessions())


def test_prepared_statements(connect):
    """Planned once, run often, over other sessions' changes."""
    worker, other = connect(prepare_threshold=0), connect(prepare_threshold=0)
    for _ in range(10):
        message = append(other, id=uuid.uuid4())
        (leased,) = claim(worker)
        assert leased.id == message
        assert value(worker, "complete", leased.token)


def test_a_session_that_serves_roles_with_different_rights(connect):
    """As a pool does that sets the role per transaction; rights change meanwhile, and nobody acts with another's."""
    operator, pooled = connect(), connect(prepare_threshold=0)
    may = {"desk": {"orders"}, "till": {"bills"}, "counter": {"orders", "bills"}, "house": {"orders", "bills", "other"}}
    try:
        for role, topics in may.items():
            operator.execute(f"CREATE ROLE {role}")
            for topic in topics if role != "house" else [None]:
                for capability in "producer", "worker":
                    value(operator, "grant_access", role, f"{capability}:{topic}" if topic else capability)

        def works(role, topic):
            try:
                with pooled.transaction():
                    pooled.execute(f"SET LOCAL ROLE {role}")
                    append(pooled, topic)
                    (lease,) = claim(pooled, topic, batch_size=1)
                    assert value(pooled, "complete", lease.token)
                return True
            except psycopg.errors.InsufficientPrivilege as error:
                assert topic in str(error)
                return False

        for _ in range(3):
            for role, topics in may.items():
                assert {topic for topic in may["house"] if works(role, topic)} == topics
        for capability in "producer", "worker":
            value(operator, "grant_access", "till", f"{capability}:other")
            value(operator, "revoke_access", "till", f"{capability}:bills")
        assert {topic for topic in may["house"] if works("till", topic)} == {"other"}
        assert {topic for topic in may["house"] if works("desk", topic)} == {"orders"}
        # a lease that one role took is not for another to answer
        append(operator, "bills")
        with pooled.transaction():
            pooled.execute("SET LOCAL ROLE counter")
            (lease,) = claim(pooled, "bills")
        for answer in "complete", "fail", "release":
            with pytest.raises(psycopg.errors.InsufficientPrivilege), pooled.transaction():
                pooled.execute("SET LOCAL ROLE desk")
                value(pooled, answer, lease.token)
        assert value(pooled, "complete", lease.token)
    finally:
        for role in may:
            operator.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_session_goes_on_after_drop_and_create_extension(connect):
    operator, worker = connect(), connect(prepare_threshold=0)
    for function, arguments in CALLS.items():  # every cache is filled
        append(worker, id=uuid.uuid4())
        rows(worker, function, *arguments)
    for _ in range(2):
        operator.execute("DROP EXTENSION outbox")
        for function, arguments in CALLS.items():
            with pytest.raises(psycopg.Error) as gone:
                value(worker, function, *arguments)
            assert gone.value.sqlstate in ("42883", "3F000")  # no such function or schema
        operator.execute("CREATE EXTENSION outbox")
        a_life_of_a_message(itertools.cycle([worker]))


def test_a_transaction_sees_its_own_drop_and_create(connect):
    worker = connect()
    append(worker)
    with worker.transaction():
        worker.execute("DROP EXTENSION outbox; CREATE EXTENSION outbox")
        message = append(worker)
        assert [m.id for m in claim(worker)] == [message]
    with worker.transaction(force_rollback=True):
        worker.execute("DROP EXTENSION outbox; CREATE EXTENSION outbox")
        append(worker)
    assert states(worker) == {message: "leased"}
    assert append(worker, id=message) == message


def test_maintenance_beside_cached_objects(connect):
    """Rewrites and new indexes change what a session knows of the tables, not what it does."""
    operator, worker = connect(), connect()
    append(worker)
    for statement in (
        "VACUUM FULL outbox.delivery",
        "CLUSTER outbox.envelope USING envelope_pkey",
        "REINDEX SCHEMA outbox",
        "CREATE INDEX extra ON outbox.delivery (lease_owner, attempts)",
        "CREATE INDEX extra_payload ON outbox.envelope USING gin (payload)",
        "CREATE INDEX extra_type ON outbox.envelope (upper(type)) WHERE left(topic, 1) <> 'x'",
        "ALTER TABLE outbox.receipt SET (fillfactor = 90)",
    ):
        operator.execute(statement)
        append(worker, payload='{"a": [1, 2]}')
        (leased, *rest) = claim(worker)
        assert value(worker, "complete", leased.token)
        assert all(value(worker, "release", m.token) for m in rest)
        append(operator, id=uuid.uuid4())
    operator.execute("SET enable_seqscan = off")
    by_index = """SELECT count(*) FROM outbox.delivery WHERE lease_owner IS NULL AND attempts = 0"""
    assert one(operator, by_index) == one(operator, "SELECT count(*) FROM outbox.message WHERE state = 'ready'")
    check_storage(operator)


@pytest.fixture
def mismatch(connect):
    """The catalog says another version than the library's, as between the new package and ALTER EXTENSION."""
    connection = connect()
    installed = one(connection, "SELECT extversion FROM pg_extension WHERE extname = 'outbox'")
    update = "UPDATE pg_extension SET extversion = %s WHERE extname = 'outbox'"

    def set_version(version=installed):
        connection.execute(update, [version])
        # what ALTER EXTENSION UPDATE does besides: it replaces functions
        connection.execute("CREATE OR REPLACE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")

    yield set_version
    set_version()


@pytest.mark.parametrize("function", CALLS)
def test_another_version_is_55000_in_new_sessions(connect, mismatch, function):
    mismatch("0.0.9")
    fresh = connect()
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
        value(fresh, function, *CALLS[function])
    assert "0.0.9" in raised.value.diag.message_primary
    assert "ALTER EXTENSION outbox UPDATE" in raised.value.diag.message_hint


def test_another_version_is_55000_in_old_sessions_and_the_right_one_works_again(connect, mismatch):
    old = connect()
    message = append(old)
    mismatch("0.0.9")
    for function, arguments in CALLS.items():
        assert sqlstate(old, function, *arguments) == "55000"
    assert states(old) == {message: "ready"}
    mismatch()
    assert [m.id for m in claim(old)] == [message]


def test_temporary_objects_of_the_same_name_are_not_taken_for_the_extensions(connect):
    worker = connect()
    worker.execute("SET search_path = pg_temp, public")
    for table in "envelope", "delivery", "receipt", "processed", "topic":
        worker.execute(f"CREATE TEMPORARY TABLE {table} (seq bigint)")
    a_life_of_a_message(itertools.cycle([worker]))


def test_a_session_that_was_killed_gives_back_its_claim(connect):
    worker, other = connect(), connect()
    message = append(other)
    worker.execute("BEGIN")
    assert len(claim(worker)) == 1
    assert claim(other) == []
    one(other, "SELECT pg_terminate_backend(%s)", worker.info.backend_pid)
    (again,) = until(lambda: claim(other))
    assert (again.id, again.attempts) == (message, 1)
