"""What the runners need, from the system if it is there, else into the build area; nothing is installed.

Debian packages are downloaded and unpacked, with those they need that the system lacks; Python, npm, and crates by
their own clients, in the pinned versions of this folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "dev"))
import setup  # noqa: E402

MULTIARCH = "usr/lib/x86_64-linux-gnu"


class Hole(Exception):
    """A driver that cannot be had here; the message is the reason."""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Hole(f"{Path(str(command[0])).name} failed: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def works(*command, env=None):
    try:
        return subprocess.run([*map(str, command)], capture_output=True, env=env, timeout=60).returncode == 0
    except OSError:
        return False


def digest(*things):
    return hashlib.sha256(repr(things).encode()).hexdigest()[:8]


# -- Debian ----------------------------------------------------------------------------------


class Apt:
    """apt-get, of the system, or with the same mirrors for another release (and nothing installed)."""

    def __init__(self, release=None):
        self.release = release
        self.environment = dict(os.environ, LC_ALL="C")
        if not shutil.which("apt-get"):
            raise Hole("no apt-get to fetch it with")
        if release:
            self.elsewhere(setup.area() / f"apt-{release}")
        self.options = ["-qq", "-o", "APT::Sandbox::User=root"]

    def elsewhere(self, home):
        for folder in "lists/partial", "cache/archives/partial":
            (home / folder).mkdir(parents=True, exist_ok=True)
        (home / "status").touch()
        (home / "sources.list").write_text(debian_source(self.release))
        (home / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{home}/sources.list";\nDir::Etc::sourceparts "/nonexistent";\n'
            f'Dir::State::lists "{home}/lists";\nDir::State::status "{home}/status";\nDir::Cache "{home}/cache";\n'
        )
        self.environment["APT_CONFIG"] = str(home / "apt.conf")

    def get(self, *arguments, **options):
        return run("apt-get", *self.options, *arguments, env=self.environment, **options)

    def missing(self, packages):
        """These packages and those they need that are not installed."""
        plan = self.get("-s", "--no-install-recommends", "install", *packages)
        needed = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        return sorted({*needed, *packages})

    def unpack(self, packages, folder, all_of_them):
        with tempfile.TemporaryDirectory() as place:
            try:
                wanted = self.missing(packages) if all_of_them else packages
                self.get("download", *wanted, cwd=place)
            except Hole:
                self.get("update")  # the lists may be old, or not there yet
                wanted = self.missing(packages) if all_of_them else packages
                self.get("download", *wanted, cwd=place)
            for package in sorted(Path(place).glob("*.deb")):
                run("dpkg-deb", "-x", package, folder)
                with open(folder / "versions", "a") as versions:
                    versions.write(run("dpkg-deb", "-W", "--showformat=${Package} ${Version}\\n", package))


def keep_links_inside(folder):
    """Absolute links between unpacked files, made relative: Java's conf is a link into /etc."""
    for link in filter(Path.is_symlink, folder.rglob("*")):
        target = os.readlink(link)
        if target.startswith("/") and os.path.lexists(folder / target[1:]):
            link.unlink()
            link.symlink_to(os.path.relpath(folder / target[1:], link.parent))


def debian_source(release):
    """The system's own mirror of Debian, for another release."""
    for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        for line in file.read_text().splitlines() if file.exists() else []:
            words = line.split()
            if line.startswith(("deb ", "URIs:")):
                address = next((w for w in words[1:] if w.rstrip("/").endswith("/debian")), None)
                if address:
                    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
                    return f"deb [signed-by={keys}] {address} {release} main\n"
    raise Hole("no mirror of Debian among the sources of apt")


def debian(packages, release=None, all_of_them=True):
    """A folder with those packages unpacked, and what they need."""
    home = setup.area() / f"debian-{packages[0]}-{digest(packages, release)}"
    with setup.alone("apt"):
        if not home.exists():
            setup.say(f"fetching Debian's {' '.join(packages)}")
            with setup.appearing_whole(home) as folder:
                Apt(release).unpack(packages, folder, all_of_them)
                keep_links_inside(folder)
    return home


def debian_version(package):
    """Of what was unpacked, else of what is installed."""
    for file in setup.area().glob("debian-*/versions"):
        for name, version in map(str.split, file.read_text().splitlines()):
            if name == package:
                return version
    return run("dpkg-query", "-W", "-f", "${Version}", package)


def libraries(home):
    """LD_LIBRARY_PATH for programs unpacked there."""
    return os.pathsep.join(str(home / folder) for folder in (MULTIARCH, "lib/x86_64-linux-gnu", "usr/lib"))


# -- other registries ------------------------------------------------------------------------


def python_packages():
    requirements = HERE / "requirements.txt"
    home = setup.area() / f"contract-python-{digest(requirements.read_text(), sys.version)}"
    with setup.alone("contract-python"):
        if not home.exists():
            setup.say("fetching the Python drivers")
            with setup.appearing_whole(home) as folder:
                run(*setup.pip(), "install", "--target", folder, "-r", requirements)
    return home


def node_packages():
    lock = HERE / "package-lock.json"
    home = setup.area() / f"contract-node-{digest(lock.read_text())}"
    if not shutil.which("npm"):
        raise Hole("no node and npm here")
    with setup.alone("contract-node"):
        if not home.exists():
            setup.say("fetching the Node drivers")
            with setup.appearing_whole(home) as folder:
                for file in "package.json", "package-lock.json":
                    shutil.copy(HERE / file, folder)
                run("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=folder)
    for file in (HERE / "runners").glob("*.mjs"):  # a module looks for packages beside itself
        if not (home / file.name).exists() or (home / file.name).read_text() != file.read_text():
            shutil.copy(file, home)
    return home
