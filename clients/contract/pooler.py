"""A pgbouncer in transaction mode before a server, every transaction on another connection than the one before."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import setup
import tools
from server import free_port, give_to_server_user

# pgbouncer knows protocol-level prepared statements from 1.21 on; Debian 12 has 1.18, Debian 13 has 1.24
RELEASES = {"pgbouncer": None, "new pgbouncer": "trixie"}
NEW = ["pgbouncer", "libc6", "libevent-2.1-7t64", "libcares2", "libssl3t64", "libsystemd0", "libpam0g", "libcap2",
       "libaudit1", "libcap-ng0", "libzstd1", "zlib1g", "libgcc-s1"]  # fmt: skip


def program(name):
    """The command that starts it, and its environment."""
    if RELEASES[name] is None:
        home = tools.debian(["pgbouncer"])
        return [home / "usr/sbin/pgbouncer"], dict(os.environ, LD_LIBRARY_PATH=tools.libraries(home))
    home = tools.debian(NEW, RELEASES[name], all_of_them=False)
    folder = home / tools.MULTIARCH  # with its own C library and loader: this system's may be older
    return [folder / "ld-linux-x86-64.so.2", "--library-path", folder, home / "usr/sbin/pgbouncer"], dict(os.environ)


class Pooler:
    def __init__(self, server, name):
        self.name = name
        command, environment = program(name)
        self.home = Path(tempfile.mkdtemp(prefix="pool-", dir=setup.temporary_directory()))
        self.port = free_port()
        conf = self.home / "pgbouncer.ini"
        prepared = "max_prepared_statements = 200\n" if RELEASES[name] else ""
        conf.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\npool_mode = transaction\nauth_type = any\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nlogfile = {self.home}/log\n"
            f"ignore_startup_parameters = extra_float_digits\nmin_pool_size = 2\nserver_round_robin = 1\n{prepared}"
        )
        for path in self.home, conf:
            give_to_server_user(path)
        with open(self.home / "out", "wb") as out:
            self.process = subprocess.Popen(
                [*map(str, command), str(conf)], stdout=out, stderr=out, env=environment, **setup.as_server_user()
            )
        deadline = time.monotonic() + 30
        while not self.listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise tools.Hole(f"{name} did not start: {(self.home / 'out').read_text()[-600:]}")
            time.sleep(0.02)

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.move(self.home / "log", setup.area() / f"contract-{self.name.replace(' ', '-')}.log")
        shutil.rmtree(self.home)
