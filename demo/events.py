"""The messages' payloads: real GitHub webhook events, or generated orders where there is no npm.

A file of events is a JSON array of [type, payload] pairs.
"""

import json
import random
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@octokit/webhooks-examples"
VERSION = "7.6.1"


def prepare(folder):
    """Returns (path of a file of events, what they are)."""
    real = folder / f"github-events-{VERSION}.json"
    if real.exists() or fetch(real):
        return real, f"real GitHub webhook events of npm's {PACKAGE} {VERSION}"
    made_up = folder / "generated-orders.json"
    made_up.write_text(json.dumps([order(random.Random(number)) for number in range(300)]))
    return made_up, f"generated orders, because npm could not fetch {PACKAGE}"


def load(path):
    return json.loads(Path(path).read_text())


def fetch(target):
    if not shutil.which("npm"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"]
        if subprocess.run(command, cwd=folder, capture_output=True).returncode != 0:
            return False
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            catalogue = json.load(tar.extractfile("package/api.github.com/index.json"))
    events = [
        (f"evt.github.{event['name']}.v1", example)
        for event in catalogue
        for example in event["examples"]
        if "sender" in example
    ]
    target.write_text(json.dumps(events))
    return True


def order(chance):
    """One made-up order, about as large as a GitHub event."""
    lines = [
        {
            "article": f"A-{chance.randrange(10**6):06}",
            "text": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=60)),
            "quantity": chance.randrange(1, 10),
            "price": chance.randrange(100, 10**5) / 100,
        }
        for _ in range(chance.randrange(10, 100))
    ]
    return "evt.shop.order_placed.v1", {"sender": {"login": f"c{chance.randrange(500)}"}, "lines": lines}
