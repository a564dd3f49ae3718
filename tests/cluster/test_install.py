"""`make install` installs into the server that is named, or into the system's, or says what is missing and stops."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
import setup

PG = os.environ["PG"]
HERE = {k: v for k, v in os.environ.items() if k not in ("PG", "PG_CONFIG", "DESTDIR", "MAKEFLAGS", "MAKELEVEL")}
HEADERS = f"apt install postgresql-server-dev-{PG}"


def make(verb, pg_config, **more):
    command = ["make", verb, f"PG_CONFIG={pg_config}"]
    return subprocess.run(command, cwd=setup.CHECKOUT, env={**HERE, **more}, capture_output=True, text=True, timeout=300)


def pretend(folder, **answers):
    """A pg_config that answers as that of PG does, except for these."""
    real = setup.output(os.environ["PG_CONFIG"], "--bindir") + "/pg_config"
    cases = "".join(f"--{name.replace('_', '-')}) echo '{answer}';;\n" for name, answer in answers.items())
    program = folder / "pg_config"
    program.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}*) exec "{real}" "$@";;\nesac\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def unchanged():
    """What a build for any server would change."""
    files = [setup.area() / f"pg{PG}" / "ready.json", *(setup.CHECKOUT / "target" / "package").rglob("*.so")]
    return {file: file.stat().st_mtime_ns for file in files if file.exists()}


def stops(verb, pg_config, *sentences, **more):
    before = unchanged()
    done = make(verb, pg_config, **more)
    assert done.returncode != 0
    for sentence in sentences:
        assert sentence in done.stderr
    assert "installed /" not in done.stdout
    assert unchanged() == before


@pytest.mark.parametrize("verb", ["build", "install", "package", "installcheck"])
def test_a_server_without_headers_is_an_error(verb, tmp_path):
    program = pretend(tmp_path, includedir_server=tmp_path)
    stops(verb, program, f"PG_CONFIG={program} comes without postgres.h", HEADERS)


def test_tests_do_not_pass_over_a_named_server_either(tmp_path):
    program = pretend(tmp_path, pgxs=tmp_path / "lib/pgxs/src/makefiles/pgxs.mk")
    stops("installed", program, "comes without pg_regress", HEADERS)


def test_no_such_file():
    stops("install", "/no/such/pg_config", "PG_CONFIG=/no/such/pg_config does not exist")


def test_a_program_that_is_no_pg_config():
    stops("install", "/bin/false", "PG_CONFIG=/bin/false does not run")
    stops("install", "/bin/echo", "PG_CONFIG=/bin/echo is no pg_config")


def test_another_major(tmp_path):
    program = pretend(tmp_path, version="PostgreSQL 17.11" if PG != "17" else "PostgreSQL 16.15")
    stops("install", program, f"not PostgreSQL {PG}", PG=PG)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    done = make("install", os.environ["PG_CONFIG"], DESTDIR=str(tmp_path / "file"))
    assert done.returncode != 0
    assert "cannot write into" in done.stderr and "sudo cp -R" in done.stderr


def test_the_named_server_gets_it(tmp_path):
    pg_config = os.environ["PG_CONFIG"]
    done = make("install", pg_config, DESTDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for folder, file in ("--pkglibdir", "outbox.so"), ("--sharedir", "extension/outbox.control"):
        assert (tmp_path / setup.output(pg_config, folder).lstrip("/") / file).exists()


def test_without_a_server_of_the_system_it_stops(monkeypatch, tmp_path):
    program = pretend(tmp_path, includedir_server=tmp_path)
    monkeypatch.delenv("PG_CONFIG")
    monkeypatch.setattr(setup, "pg_config_candidates", lambda pg: [str(program)])
    with pytest.raises(setup.Missing) as missing:
        setup.prepare(PG, embedded=False)
    assert HEADERS in str(missing.value) and f"{program} comes without postgres.h" in str(missing.value)
    assert Path(setup.find_server(PG)).exists()  # tests may take the embedded one


def test_only_demo_tests_and_benchmarks_may_fall_back():
    for verb in "all", "build", "install", "package", "installcheck":
        shown = subprocess.run(["make", "-n", verb], cwd=setup.CHECKOUT, capture_output=True, text=True).stdout
        assert "--system" in shown or "--running" in shown, verb
