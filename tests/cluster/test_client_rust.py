"""The Rust client, from the crate that `cargo package` makes, in a project that has nothing else."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import setup
from client_scenario import *  # noqa: F403: the tests

CRATE = Path(__file__).resolve().parents[2] / "clients" / "rust" / "outbox-client"
MANIFEST = """[package]
name = "user"
version = "0.0.0"
edition = "2024"
[dependencies]
outbox-client = { path = "../outbox-client-0.1.0" }
serde_json = "1"
tokio = { version = "1", features = ["rt-multi-thread", "signal", "macros", "time"] }
tokio-postgres = "0.7"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    home, target = tmp_path_factory.mktemp("rust"), setup.area() / "rust-client"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}

    def cargo(*arguments, cwd):
        subprocess.run(["cargo", *arguments], cwd=cwd, env=environment, check=True, timeout=900)

    cargo("package", "--locked", "--allow-dirty", "--no-verify", cwd=CRATE)
    with tarfile.open(target / "package" / "outbox-client-0.1.0.crate") as crate:
        crate.extractall(home, filter="data")
    binaries = home / "user" / "src" / "bin"
    binaries.mkdir(parents=True)
    for name in ("deliver", "produce"):
        shutil.copy(home / "outbox-client-0.1.0" / "examples" / f"{name}.rs", binaries)
    (home / "user" / "Cargo.toml").write_text(MANIFEST)
    shutil.copy(CRATE / "Cargo.lock", home / "user" / "Cargo.lock")  # the versions that are pinned
    cargo("build", cwd=home / "user")
    return target / "debug"
