"""observability/ and docs/runbook.md: a real sql_exporter reads a cluster and shows the metrics that alerts and dashboard ask
for; the runbook's queries run.
"""

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
import setup
from conftest import append, claim, until, value
from server import Server, free_port

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"^(sql_outbox_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def server():
    with Server(conf={"listen_addresses": "127.0.0.1"}) as server:
        server.createdb("app", extension="outbox")
        server.psql("CREATE ROLE outbox_monitor LOGIN; SELECT outbox.grant_access('outbox_monitor', 'monitor')", "app")
        with server.connect("app", autocommit=True) as db:
            for topic in "orders", "bills":
                for _ in range(4):
                    append(db, topic, payload='"secret"', key="k" if topic == "bills" else None)
            delivered, failed, dead = claim(db, "orders", batch_size=3)
            assert value(db, "complete", delivered.token)
            assert not value(db, "complete", delivered.token)
            assert value(db, "fail", failed.token, "secret") == "waiting"
            assert value(db, "abandon", dead.token, "secret")
        yield server


@pytest.fixture(scope="module")
def page(server):
    """What the exporter shows once it has read the database."""
    port = free_port()
    config = (ROOT / "observability" / "sql_exporter.yml").read_text()
    connection = f"postgres://outbox_monitor@127.0.0.1:{server.port}/app?sslmode=disable"
    config, times = re.subn(r"postgres://[^']+", connection, config)
    assert times == 1
    file = server.home / "sql_exporter.yml"
    file.write_text(config)
    program = subprocess.Popen(
        [setup.sql_exporter(), "-config.file", file, "-web.listen-address", f"127.0.0.1:{port}"],
        env={"PATH": "/usr/bin"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )

    def read():
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        except OSError:
            return None
        return text if len({name for name, *_ in METRIC.findall(text)}) == 4 else None

    try:
        yield until(read, 60)
    finally:
        program.kill()
        program.wait()


def test_the_exporter_shows_what_the_views_show(page):
    shown = {}
    for name, labels, number in METRIC.findall(page):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        assert label["database"] == "app"
        shown[name, label.get("topic") or label.get("name"), label["col"]] = float(number)
    for state, count in {"ready": 1, "leased": 0, "waiting": 1, "dead": 1}.items():
        assert shown["sql_outbox_messages", "orders", state] == count
    assert shown["sql_outbox_messages", "bills", "ready"] == 4
    for kind, count in {"delivered": 1, "failed": 2, "stale": 1}.items():
        assert shown["sql_outbox_answers_total", "orders", kind] == count
    assert shown["sql_outbox_oldest_ready_seconds", "orders", "seconds"] >= 0
    assert shown["sql_outbox_status_ok", "version", "ok"] == 1
    assert shown["sql_outbox_status_ok", "preload", "ok"] == 0
    assert "secret" not in page


def asked_for():
    alerts = (ROOT / "observability" / "alerts.yml").read_text()
    dashboard = json.loads((ROOT / "observability" / "dashboard.json").read_text())
    expressions = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels):", alerts)
    assert len(expressions) == alerts.count("- alert:") > 3
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(panels) >= len(dashboard["panels"]) > 3
    return expressions + panels + [variable["query"] for variable in dashboard["templating"]["list"][1:]]


@pytest.mark.parametrize("expression", asked_for())
def test_what_alerts_and_dashboard_ask_for_is_there(page, expression):
    """Every metric, and every value of a label that is named."""
    names = re.findall(r"sql_outbox_\w+", expression)
    assert names and set(names) <= {name for name, *_ in METRIC.findall(page)}
    for selector in re.findall(r"\{(.*?)\}", expression):
        for label, operator, text in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selector):
            for text in text.split("|") if "$" not in text else []:
                assert f'{label}="{text}"' in page, text


def test_alerts_lead_to_pages_of_the_runbook():
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    pages = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", runbook, re.MULTILINE)}
    alerts = (ROOT / "observability" / "alerts.yml").read_text()
    asked = re.findall(r"runbook\.md#([\w-]+)", alerts)
    assert len(asked) == alerts.count("- alert:") and set(asked) <= pages


def runbook_queries():
    text = (ROOT / "docs" / "runbook.md").read_text()
    return re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("query", runbook_queries())
def test_the_runbooks_queries_run_for_an_operator(server, query):
    server.psql(
        f"""BEGIN; DO $$ BEGIN CREATE ROLE outbox_operator; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
            SELECT outbox.grant_access('outbox_operator', 'operator');
            SET LOCAL ROLE outbox_operator;
            {query}
            ROLLBACK;""",
        "app",
    )
