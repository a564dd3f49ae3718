"""The tables' owner need not be a superuser, and does not become one by what is put on the tables or beside them."""

import pytest
from conftest import append, one, until, value

CONF = {"shared_preload_libraries": "outbox", "outbox.purge_interval_seconds": 1}


@pytest.fixture
def owner(db):
    """The owner of everything that the extension has made."""
    db.execute("CREATE ROLE owner; CREATE ROLE seller")
    db.execute(
        """DO $$ DECLARE o record; BEGIN
             FOR o IN SELECT format('ROUTINE %s', oid::regprocedure) AS it FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
                      UNION ALL SELECT format('TABLE %s', oid::regclass) FROM pg_class
                       WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'S')
                      UNION ALL SELECT 'TYPE outbox.claimed' UNION ALL SELECT 'SCHEMA outbox' LOOP
               EXECUTE format('ALTER %s OWNER TO owner', o.it);
             END LOOP; END $$"""
    )
    db.execute("GRANT CREATE ON SCHEMA public TO owner")
    db.execute("CREATE TABLE seen (who name, is_superuser boolean); GRANT ALL ON seen TO PUBLIC")
    db.execute(
        """CREATE FUNCTION public.look() RETURNS void LANGUAGE sql AS $$
             INSERT INTO public.seen SELECT rolname, rolsuper FROM pg_roles WHERE rolname = current_user $$"""
    )
    yield "owner"
    db.execute("RESET ROLE; DROP OWNED BY seller; DROP ROLE seller; REASSIGN OWNED BY owner TO postgres")
    db.execute("DROP OWNED BY owner; DROP ROLE owner")


def test_the_background_purge_runs_the_owners_triggers_as_the_owner(db, owner):
    db.execute(f"SET ROLE {owner}")
    db.execute(
        """CREATE FUNCTION public.on_delete() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM public.look(); RETURN NULL; END $$"""
    )
    db.execute(
        """CREATE TRIGGER look AFTER DELETE ON outbox.processed
             FOR EACH STATEMENT EXECUTE FUNCTION public.on_delete()"""
    )
    until(lambda: one(db, "SELECT count(*) FROM seen"))
    assert db.execute("SELECT DISTINCT who, is_superuser FROM seen").fetchall() == [(owner, False)]


def test_rights_are_computed_as_the_owner(db, owner):
    """A type's cast to text is a function of the owner's."""
    db.execute(f"SET ROLE {owner}")
    db.execute("CREATE TYPE public.word AS ENUM ('monitor')")
    db.execute(
        """CREATE FUNCTION public.as_text(public.word) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN PERFORM public.look(); RETURN 'monitor'; END $$"""
    )
    db.execute("CREATE CAST (public.word AS text) WITH FUNCTION public.as_text(public.word) AS IMPLICIT")
    db.execute("ALTER TABLE outbox.access RENAME TO access_before")
    db.execute("CREATE TABLE outbox.access (role text, capability public.word, topic text, number oid)")
    db.execute("INSERT INTO outbox.access SELECT 'seller', 'monitor', '*', oid FROM pg_roles WHERE rolname = 'seller'")
    until(lambda: one(db, "SELECT count(*) FROM seen"))
    value(db, "purge")
    assert db.execute("SELECT DISTINCT who, is_superuser FROM seen").fetchall() == [(owner, False)]
    db.execute("DROP TABLE outbox.access")
    db.execute("ALTER TABLE outbox.access_before RENAME TO access")


def test_objects_of_users_in_the_schema_stay_theirs(db):
    db.execute("CREATE ROLE buyer")
    db.execute("CREATE VIEW outbox.mine AS SELECT 1")
    db.execute("CREATE FUNCTION outbox.mine() RETURNS integer LANGUAGE sql RETURN 1")
    db.execute("CREATE FUNCTION outbox.append(integer) RETURNS integer LANGUAGE sql RETURN 1")
    value(db, "grant_access", "buyer", "producer")
    db.execute("SET ROLE buyer")
    append(db)
    db.execute("RESET ROLE")
    assert value(db, "purge") == 0
    value(db, "revoke_access", "buyer", "producer")
    db.execute("DROP ROLE buyer")
