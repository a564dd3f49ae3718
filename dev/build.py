#!/usr/bin/env python3
"""Build the extension and install it where the chosen PostgreSQL looks for it.

    python3 dev/build.py                build and install, for PG (environment, default 15)
    python3 dev/build.py --build-only   leave the files in target/package/pgN
    python3 dev/build.py --system       not into the embedded server: the system's, or that of PG_CONFIG, or none

`cargo pgrx install` would write into the server's folders one file after the other, with the
modes of the moment. This builds a package first and then moves each file into place whole and
readable for everybody, so a server that runs meanwhile sees the old file or the new one, and
a server that runs as another user can read it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import setup


def build(environment):
    """Build in release mode; returns a folder whose tree is that of the installed files."""
    major = environment["PG"]
    folder = setup.CHECKOUT / "target" / "package" / f"pg{major}"
    shutil.rmtree(folder, ignore_errors=True)
    # not `cargo pgrx`, which may find another cargo-pgrx than the one that was prepared
    command = ["cargo-pgrx", "pgrx", "package", "--pg-config", environment["PG_CONFIG"]]
    command += ["--out-dir", str(folder), "--no-default-features", "--features", f"pg{major}"]
    # compiler messages and errors come on stderr; stdout lists the files, in colour even in a pipe
    quiet = {"stdout": subprocess.DEVNULL}
    subprocess.run(command, cwd=setup.CHECKOUT, env=environment, check=True, **quiet)
    return folder


def package(pg=None, embedded=True):
    """Build; returns the folder."""
    environment = setup.prepare(pg, embedded)
    with setup.alone("build"):
        return build(environment)


def install(pg=None, destdir="/", embedded=True):
    """Build and install; returns the installed files."""
    environment = setup.prepare(pg, embedded)
    installed = []
    with setup.alone("build"):
        folder = build(environment)
        for source in sorted(filter(Path.is_file, folder.rglob("*"))):
            target = Path(destdir) / source.relative_to(folder)
            try:
                put(source, target, 0o755 if target.suffix in (".so", ".dylib") else 0o644)
            except OSError as error:
                by_hand = f"sudo cp -R {folder}/. {destdir}"
                raise setup.Missing(f"cannot write into {target.parent} ({error.strerror}); {by_hand}") from None
            installed.append(target)
    return installed


def put(source, target, mode):
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.read_bytes() == source.read_bytes():
        target.chmod(mode)
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".outbox-", delete=False) as new:
        new.write(source.read_bytes())
    os.chmod(new.name, mode)
    os.replace(new.name, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg", help="major version of PostgreSQL (default: $PG, or 15)")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--system", action="store_true", help="never the embedded server")
    arguments = parser.parse_args()
    if arguments.build_only:
        print(package(arguments.pg, not arguments.system))
        return
    for file in install(arguments.pg, os.environ.get("DESTDIR") or "/", not arguments.system):
        print(f"installed {file}")


if __name__ == "__main__":
    sys.exit(setup.friendly(main))
