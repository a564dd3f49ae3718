"""Servers with a revision of outbox in them, each a copy of the embedded PostgreSQL in the build area, built as Cargo.toml says."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import setup

BUILT_FROM = ("Cargo.toml", "Cargo.lock", "outbox.control", "src", "sql", ".cargo", "build.rs")


def place():
    folder = setup.area() / "compare"
    folder.mkdir(exist_ok=True)
    return folder


def checkout(name):
    """A folder with that revision: one that is there, or a git worktree in the build area."""
    if Path(name).is_dir():
        return Path(name).resolve()
    git = ["git", "-C", str(setup.CHECKOUT)]
    found = subprocess.run([*git, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        raise setup.Missing(f"{name} is neither a folder nor a revision")
    folder = place() / found.stdout.strip()[:12]
    if not folder.exists():
        setup.run(*git, "worktree", "prune")
        setup.run(*git, "worktree", "add", "--quiet", "--detach", folder, found.stdout.strip())
    return folder


def fingerprint(source):
    """Of all that is compiled or installed."""
    digest = hashlib.sha256()
    for name in BUILT_FROM:
        top = source / name
        for file in sorted(f for f in [top, *top.rglob("*")] if f.is_file()):
            digest.update(str(file.relative_to(source)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def server(source, pg=None):
    """pg_config of a server that has outbox as `source` is now."""
    environment = setup.prepare(pg)
    original = Path(setup.embedded_server(environment["PG"])).parent.parent
    home = place() / f"pg{environment['PG']}-{fingerprint(source)}"
    with setup.alone("compare"):
        if not home.exists():
            setup.say(f"building {source}; about two minutes")
            with setup.appearing_whole(home) as folder:
                shutil.copytree(original, folder, symlinks=True, dirs_exist_ok=True)
                built = build(source, environment, folder / "bin" / "pg_config")
                for file in filter(Path.is_file, built.rglob("*")):
                    kind = "libdir" if file.suffix in (".so", ".dylib") else "sharedir"
                    target = Path(setup.output(folder / "bin" / "pg_config", "--pkglibdir" if kind == "libdir" else "--sharedir"))
                    shutil.copy(file, target / file.name if kind == "libdir" else target / "extension" / file.name)
    return str(home / "bin" / "pg_config")


def build(source, environment, pg_config):
    package = place() / "package"
    shutil.rmtree(package, ignore_errors=True)
    profile = {k: v for k, v in environment.items() if not k.startswith("CARGO_PROFILE_")}
    profile.update(PGRX_HOME=str(place() / "pgrx"), CARGO_TARGET_DIR=str(place() / "target"), PG_CONFIG=str(pg_config))
    (place() / "pgrx").mkdir(exist_ok=True)
    major = environment["PG"]
    (place() / "pgrx" / "config.toml").write_text(f'[configs]\npg{major} = "{environment["PG_CONFIG"]}"\n')
    command = ["cargo-pgrx", "pgrx", "package", "--pg-config", environment["PG_CONFIG"], "--out-dir", package]
    command += ["--no-default-features", "--features", f"pg{major}"]
    subprocess.run(list(map(str, command)), cwd=source, env=profile, check=True, stdout=subprocess.DEVNULL)
    return package


def commit(source):
    """What git calls it."""
    try:
        return setup.output("git", "-C", source, "describe", "--always", "--dirty", "--exclude", "*")
    except (OSError, subprocess.CalledProcessError):
        return os.path.basename(source)
