#!/usr/bin/env python3
"""Debian 13 in a directory: a newer Slurm and a newer Python than those of the machine that the tests run on.

    newer_debian.py COMMAND ...    run a command in it, in this directory, with its Python first in PATH

It is made on first use, in the cache directory of the user, with debootstrap; this takes about a minute and 0.9 GB.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from machines import ClusterError, System

SUITE = "trixie"
PACKAGES = (
    "git iproute2 mariadb-client-core mariadb-server-core munge python3-venv slurm-client slurmctld slurmd slurmdbd"
).split()
TEST_TOOLS = "hypothesis jsonschema pytest pytest-timeout pytest-xdist".split()
REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS, VERSIONS = REPOSITORY / "requirements.txt", REPOSITORY / "requirements.lock"

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp-ladder" / SUITE
VENV = Path("/opt/ddp-ladder")
DEBIAN = System(HOME / "root", str(VENV / "bin/python"), "disabled")


def newer_debian() -> System:
    """Return the system, which is made if it is not there or other packages are wanted.

    Raises ClusterError with the reason why it cannot be made.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = " ".join(PACKAGES)
        made = HOME / "made"
        if not is_mark(made, packages):
            install_debian()
            made.write_text(packages)
        python_packages = "\n".join([*TEST_TOOLS, REQUIREMENTS.read_text(), VERSIONS.read_text()])
        installed = DEBIAN.root / "opt/installed"
        if not is_mark(installed, python_packages):
            install_python_packages()
            installed.write_text(python_packages)
    return DEBIAN


def is_mark(file: Path, content: str) -> bool:
    return file.exists() and file.read_text() == content


def install_debian() -> None:
    if shutil.which("debootstrap") is None:
        raise ClusterError("debootstrap not found: apt-get install --no-install-recommends debootstrap")
    if os.geteuid() != 0:
        raise ClusterError("needs root, for debootstrap")
    if str(DEBIAN.root) in Path("/proc/self/mountinfo").read_text():
        raise ClusterError(f"something is mounted below {DEBIAN.root}: unmount it, so that it is not deleted")
    (HOME / "made").unlink(missing_ok=True)
    if DEBIAN.root.exists():
        shutil.rmtree(DEBIAN.root)
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    # What it mounts and leaves when it is killed ends with the namespace.
    argv = ["unshare", "--mount", "debootstrap", *options, SUITE, str(DEBIAN.root), *mirror()]
    tell(argv, {**os.environ, **proxy()})


def install_python_packages() -> None:
    tell(DEBIAN.command(["/usr/bin/python3", "-m", "venv", "--clear", str(VENV)], Path("/")), os.environ)
    wanted = ["--constraint", str(VERSIONS), "--requirement", str(REQUIREMENTS), *TEST_TOOLS]
    tell(DEBIAN.command([DEBIAN.python, "-m", "pip", "install", "--quiet", *wanted], Path("/")), os.environ)


def mirror() -> list[str]:
    """Return where this machine has its Debian packages from; empty if it is no Debian: debootstrap knows a server."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
    return output(asked).splitlines()[:1]


def proxy() -> dict[str, str]:
    """Return the proxy of this machine's apt, as a variable for debootstrap."""
    value = output(["apt-config", "dump", "--format", "%v%n", "Acquire::http::Proxy"]).strip()
    return {"http_proxy": value} if value else {}


def output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def tell(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a command to its end; its output stands in ClusterError if it fails."""
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"Debian {SUITE} could not be set up in {HOME}:\n{done.stdout[-2000:]}")


def main(argv: Sequence[str]) -> int:
    """Run a command in it."""
    try:
        command = newer_debian().command(argv, Path.cwd())
    except ClusterError as error:
        print(f"newer_debian.py: {error}", file=sys.stderr)
        return 1
    path = f"{VENV}/bin:/usr/sbin:/usr/bin"
    return subprocess.run(command, env={**os.environ, "PATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
