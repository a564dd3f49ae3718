"""The contract's cases through two drivers; `make clients` runs them through all, and what the pages show."""

import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_contract_through_psycopg_and_node():
    command = [sys.executable, CHECKOUT / "clients/contract/run.py", "--short", "--no-install"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_of_the_pages_lead_somewhere():
    for page in (CHECKOUT / "docs" / "clients").glob("*.md"):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
