"""Fetches the peers from the package registries into the build area.

What cannot be had here is reported with its reason, and everything else is measured all the same.
"""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import setup

PGMQ_CRATE = "=0.34.0-alpha.7"  # the only 0.34 there is; the SQL it carries is PGMQ's current release
GRAPHILE_WORKER = "0.18.0"
PG_BOSS = "10.4.2"  # newer ones ask for Node 22
NODE_PG = "8.16.3"


class Unavailable(Exception):
    """The peer cannot be had here; the message says why."""


def folder(name):
    path = setup.area() / "bench" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def command(*arguments, **options):
    if not shutil.which(arguments[0]):
        raise Unavailable(f"no {arguments[0]} here")
    done = subprocess.run(arguments, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(arguments[:3])}` failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def pgmq():
    """The install script and its version, from the source of the crate `pgmq`."""
    project = folder("pgmq")
    text = '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "empty.rs"\n[workspace]\n'
    text += f'[dependencies]\npgmq = {{ version = "{PGMQ_CRATE}", default-features = false }}\n'
    (project / "Cargo.toml").write_text(text)
    (project / "empty.rs").touch()
    metadata = json.loads(command("cargo", "metadata", "--format-version=1", "--quiet", cwd=project))
    (manifest,) = (p["manifest_path"] for p in metadata["packages"] if p["name"] == "pgmq")
    embedded = Path(manifest).parent / "src" / "install" / "embedded"
    version = re.search(r"default_version = '(.*)'", (embedded / "pgmq.control").read_text())[1]
    return embedded / "sql" / "pgmq.sql", version


def pgq(environment):
    """Puts Debian's PgQ into the embedded server; returns its version."""
    major = environment["PG"]
    package = f"postgresql-{major}-pgq3"
    config = environment["PG_CONFIG"]
    extensions = setup.extension_folder(config)
    if not (extensions / "pgq.control").exists():
        if setup.area() not in Path(config).parents:
            raise Unavailable(f"the server is the system's; install {package} there to have it measured")
        with tempfile.TemporaryDirectory() as making:
            Path(making).chmod(0o777)
            command("apt-get", "download", package, cwd=making)
            (archive,) = Path(making).glob("*.deb")
            command("dpkg-deb", "-x", str(archive), making)
            root = Path(making) / "usr"
            for library in (root / "lib" / "postgresql" / major / "lib").glob("*.so"):
                shutil.copy(library, setup.output(config, "--pkglibdir"))
            for file in (root / "share" / "postgresql" / major / "extension").iterdir():
                shutil.copy(file, extensions)
    return re.search(r"default_version = '(.*)'", (extensions / "pgq.control").read_text())[1]


def node_modules():
    """The folder with graphile-worker, pg-boss and their driver."""
    home = folder("node")
    wanted = [f"graphile-worker@{GRAPHILE_WORKER}", f"pg-boss@{PG_BOSS}", f"pg@{NODE_PG}"]
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != repr(wanted):
        (home / "package.json").write_text('{"private": true}')
        command("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *wanted, cwd=home)
        stamp.write_text(repr(wanted))
    command("node", "--version")
    return home
