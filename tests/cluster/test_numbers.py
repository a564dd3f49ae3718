"""Message numbers stay new whatever happens to the sequence, with many sessions at once."""

import threading

from conftest import append, check_storage, claim, one, rows, value

SESSIONS = 8


def test_sessions_that_skip_ahead_at_once_share_no_number(server, database, db):
    stop, appended, failures = threading.Event(), [], []

    def produce():
        try:
            while not stop.is_set():
                with server.connect(database, autocommit=True) as connection:
                    for _ in range(5):
                        appended.append(append(connection))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=produce) for _ in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        db.execute("ALTER SEQUENCE outbox.arrival RESTART")
        value(db, "purge")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(appended) == one(db, "SELECT count(DISTINCT seq) FROM outbox.envelope")
    delivered = set()
    while leased := claim(db, batch_size=500):
        delivered |= {message.id for message in leased}
        rows(db, "complete_batch", [message.token for message in leased])
    assert delivered == set(appended)
    check_storage(db)


def test_a_restore_of_rows_without_the_sequence(server, database, db):
    ids = {append(db) for _ in range(500)}
    rows(db, "complete_batch", [message.token for message in claim(db, batch_size=100)])
    copy = f"{database}_copy"[-60:]
    server.createdb(copy, extension="outbox")
    with server.connect(copy, autocommit=True) as restored:
        for table in "envelope", "delivery", "receipt":
            with db.cursor().copy(f"COPY outbox.{table} TO STDOUT") as out:
                data = b"".join(bytes(chunk) for chunk in out)
            with restored.cursor().copy(f"COPY outbox.{table} FROM STDIN") as into:
                into.write(data)
        fresh = {append(restored) for _ in range(10)}
        claimed = {message.id for message in claim(restored, batch_size=500)}
        assert len(claimed) == 410 and fresh < claimed <= ids | fresh
        restored.execute("UPDATE outbox.receipt SET delivered_at = delivered_at - interval '1 year'")
        restored.execute("UPDATE outbox.envelope SET occurred_at = occurred_at - interval '1 year'")
        assert value(restored, "purge") == 100
        assert one(restored, "SELECT count(*) FROM outbox.message") == 410
        check_storage(restored)
    server.psql(f'DROP DATABASE "{copy}" WITH (FORCE)')
