"""What README.md says is so: its SQL runs, its reference names every function, its settings are the server's."""

import re
import subprocess
from pathlib import Path

import pytest
from server import Server

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```sql\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


def test_every_sql_block_runs_in_order(server):
    assert len(BLOCKS) > 10
    script = "\n".join(f"\\echo block {number}\n{block}" for number, block in enumerate(BLOCKS, 1))
    done = subprocess.run(
        [server.bin("psql"), "-XAt", "-v", "ON_ERROR_STOP=1", "-f", "-"],
        input=script,
        text=True,
        capture_output=True,
        env=server.env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stderr
    assert f"block {len(BLOCKS)}\n" in done.stdout


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
