"""What README.md and docs/ say is so: their SQL runs, its reference names every function, its settings are the server's."""

import re
import subprocess
from pathlib import Path

import pytest
from server import Server

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text()
PAGES = sorted((CHECKOUT / "docs").glob("*.md"))


def blocks(page):
    return re.findall(r"^ *```sql\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


def run(server, statements, database="postgres"):
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
    return done.stdout


def test_every_sql_block_runs_in_order(server):
    assert len(blocks(README)) > 10
    run(server, blocks(README))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_runs_in_order(server, page):
    """In a database of its own that has the extension and some messages."""
    server.createdb("page", extension="outbox")
    try:
        with server.connect("page", autocommit=True) as connection:
            connection.execute("SELECT outbox.append('orders', 'evt.orders.placed.v1', '1') FROM generate_series(1, 3)")
        assert blocks(page.read_text())
        run(server, blocks(page.read_text()), "page")
    finally:
        server.psql("DROP DATABASE page WITH (FORCE)")


def test_links_lead_somewhere():
    for page in [CHECKOUT / "README.md", *PAGES]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"


def test_every_function_has_its_heading_with_its_arguments(server):
    with server.connect(autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS outbox")
        functions = connection.execute(
            """SELECT proname, coalesce(proargnames[1:pronargs], '{}')
                 FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"""
        ).fetchall()
    headings = " ".join(re.findall(r"^### (.*)$", README, re.MULTILINE))
    documented = {
        name: arguments.split(", ") if arguments else [] for name, arguments in re.findall(r"(\w+)\(([^)]*)\) →", headings)
    }
    assert documented == dict(functions)


def test_settings_table_is_what_the_server_says(server):
    with server.connect(autocommit=True) as connection:
        connection.execute("LOAD 'outbox'")
        settings = connection.execute(
            """SELECT name, boot_val, min_val, max_val, context FROM pg_settings
                WHERE name LIKE 'outbox.%' ORDER BY name"""
        ).fetchall()
    who = {"user": "user", "superuser": "superuser", "sighup": "configuration file"}
    rows = {row[0]: row[1:] for row in re.findall(r"^\| (outbox\.\w+) \| (.*?) \| (.*?) \| (.*?) \|$", README, re.M)}
    assert set(rows) == {name for name, *_ in settings}
    for name, default, least, most, context in settings:
        documented_default, documented_range, documented_who = rows[name]
        assert documented_who == who[context], name
        if least is not None:
            assert documented_default == default, name
            assert documented_range.startswith(f"{least}–{most}"), name
