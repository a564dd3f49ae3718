"""What README.md and docs/ say is so: their SQL runs, the reference names every function, the settings are the server's."""

import re
import subprocess
from pathlib import Path

import pytest
from server import Server

CHECKOUT = Path(__file__).resolve().parents[2]
README = CHECKOUT / "README.md"
DOCS = CHECKOUT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
TOP = [*PAGES, CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "SECURITY.md", CHECKOUT / "clients" / "README.md"]


def name(page):
    return str(page.relative_to(CHECKOUT))


def blocks(page, language="sql"):
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture
def database(server):
    """Of a page's own; roles that the page makes go with it."""
    server.createdb("page")
    yield "page"
    server.psql("DROP DATABASE page WITH (FORCE)")
    for role in server.psql("SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384 AND NOT rolsuper").split():
        server.psql(f"DROP ROLE {role}")


def run(server, database, statements):
    script = "\n".join(f"\\echo block {number}\n{block}" for number, block in enumerate(statements, 1))
    done = subprocess.run(
        [server.bin("psql"), "-XAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", "-"],
        input=script,
        text=True,
        capture_output=True,
        env=server.env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stderr
    assert f"block {len(statements)}\n" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_sql_block_of_a_page_runs_in_order(server, database, page):
    """In a database of its own, which has the extension and some messages unless the page makes the extension."""
    statements = blocks(page)
    if page.parent in (CHECKOUT, DOCS):
        assert statements, "every page shows at least one statement"
    elif not statements:
        return
    if "CREATE EXTENSION outbox" not in "".join(statements):
        server.psql("CREATE EXTENSION outbox", database)
        append = "SELECT count(outbox.append('orders', 'evt.orders.placed.v1', '1')) FROM generate_series(1, 3)"
        server.psql(append, database)
    run(server, database, statements)


def test_the_worker_of_the_readme(server, database, monkeypatch):
    """It answers for what it could deliver and for what it could not, and goes on."""
    (worker,) = blocks(README, "python")
    server.psql("CREATE EXTENSION outbox", database)
    given = []

    def deliver(id, payload):
        given.append(payload)
        if payload == 1:
            raise ValueError("not today")
        if payload == 3:
            raise KeyboardInterrupt

    with server.connect(database, autocommit=True) as connection:
        connection.execute("SELECT outbox.append('orders', 't', to_jsonb(n)) FROM generate_series(1, 3) AS n")
        for variable in ("PGHOST", "PGPORT", "PGUSER"):
            if variable in server.env:
                monkeypatch.setenv(variable, server.env[variable])
        monkeypatch.setenv("PGDATABASE", database)
        with pytest.raises(KeyboardInterrupt):
            exec(worker, {"deliver": deliver})
        rows = connection.execute("SELECT payload, state, last_error FROM outbox.message ORDER BY payload").fetchall()
    assert given == [1, 2, 3]
    assert rows == [(1, "waiting", "not today"), (2, "delivered", None), (3, "leased", None)]


def links(page):
    return re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text())


def anchors(file):
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TOP, ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


def test_the_readme_leads_to_every_page_and_is_short():
    linked = {(CHECKOUT / target).resolve() for target, _ in links(README)}
    assert {name(page) for page in PAGES} <= {name(page) for page in [README, *linked] if page.suffix == ".md"}
    assert len(README.read_text().splitlines()) <= 250


def test_every_function_has_its_heading_with_its_arguments(server, database):
    with server.connect(database, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION outbox")
        functions = connection.execute(
            """SELECT proname, coalesce(proargnames[1:pronargs], '{}')
                 FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"""
        ).fetchall()
    headings = " ".join(re.findall(r"^## (.*)$", (DOCS / "reference.md").read_text(), re.MULTILINE))
    documented = {
        name: arguments.split(", ") if arguments else [] for name, arguments in re.findall(r"(\w+)\(([^)]*)\) →", headings)
    }
    assert documented == dict(functions)


def settings_of(server):
    with server.connect(autocommit=True) as connection:
        connection.execute("LOAD 'outbox'")
        return connection.execute(
            """SELECT name, boot_val, min_val, max_val, context FROM pg_settings
                WHERE name LIKE 'outbox.%' ORDER BY name"""
        ).fetchall()


def test_settings_are_what_the_server_says(server):
    who = {"user": "user", "superuser": "superuser", "sighup": "configuration file"}
    rows = {
        row[0]: row[1:]
        for row in re.findall(r"^\| (outbox\.\w+) \| (.*?) \| (.*?) \| (.*?) \|$", (DOCS / "settings.md").read_text(), re.M)
    }
    settings = settings_of(server)
    assert set(rows) == {name for name, *_ in settings}
    for name, default, least, most, context in settings:
        documented_default, documented_range, documented_who = rows[name]
        assert documented_who == who[context], name
        if least is not None:
            assert documented_default == default, name
            assert documented_range.startswith(f"{least}–{most}"), name


def test_settings_of_the_contract(server):
    """Its table has those with a range, as the server has them."""
    rows = re.findall(r"^\| (outbox\.\w+) \| (\d+) \| (\d+)–(\d+).* \| (\w+) \|$", (DOCS / "contract.md").read_text(), re.M)
    assert sorted(rows) == [setting for setting in settings_of(server) if setting[2] is not None]


def test_citations_of_the_contract():
    """Code and tests cite it as docs/contract.md section N, and the section exists."""
    sections = set(re.findall(r"^## (\d+)\.", (DOCS / "contract.md").read_text(), re.M))
    for folder, ending in ("src", "rs"), ("sql", "sql"), ("tests", "py"), ("tests", "sql"), ("tests", "spec"):
        for file in (CHECKOUT / folder).rglob(f"*.{ending}"):
            for before, section in re.findall(r"(\S*)\s+section (\d+)", file.read_text()):
                assert before.strip("(") == "docs/contract.md" and section in sections, f"{name(file)}: {before} section {section}"


def test_contributing_names_files_that_are_there():
    text = (CHECKOUT / "CONTRIBUTING.md").read_text()
    files = [file for file in re.findall(r"`((?:src|sql|docs|dev|tests)/[^`\s]+)`", text) if "NAME" not in file]
    assert len(files) > 20
    assert [file for file in files if not (CHECKOUT / file).exists()] == []


def test_words_that_readers_must_look_up():
    files = [*TOP, *(CHECKOUT / "sql").glob("*.sql"), *(CHECKOUT / "observability").iterdir()]
    found = {name(file): re.findall(r"(?i)\b(?:anew|lest|likewise|in vain|whoever|somebody)\b", file.read_text()) for file in files}
    assert {file: words for file, words in found.items() if words} == {}
