"""What a test may need beside Python packages, where it is, and how to get it.

`@pytest.mark.needs("chromium")`, or the fixture `require_tool`, skips a test where the tool is missing and
says how to enable it. With `USHER_REQUIRE_ALL=1`, as `.ci/run` sets it, the test fails instead.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Tool:
    """`find` returns a path or a short description, or None where the tool is missing."""

    find: Callable[[], str | None]
    enable: str


def _program(*names: str) -> Callable[[], str | None]:
    return lambda: next(filter(None, map(shutil.which, names)), None)


def _chromium() -> str | None:
    return os.environ.get("USHER_CHROMIUM") or _program("chromium", "chromium-browser", "google-chrome")()


def _node() -> str | None:
    return shutil.which("node") if shutil.which("npm") else None


def _atheris() -> str | None:
    return "atheris" if importlib.util.find_spec("atheris") else None


def _native_engine() -> str | None:
    return "usher_relay_native" if importlib.util.find_spec("usher_relay_native") else None


def _libopus() -> str | None:
    for name in ("libopus.so.0", ctypes.util.find_library("opus")):
        try:
            ctypes.CDLL(name or "no libopus found")
        except OSError:
            continue
        return name
    return None


def _ipv6_loopback() -> str | None:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return None
    return "::1"


def _package_index() -> str | None:
    ask = [sys.executable, "-m", "pip", "index", "versions", "hatchling"]
    try:
        answer = subprocess.run(ask, capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return "package index" if answer.returncode == 0 else None


def _root() -> str | None:
    return "root" if os.geteuid() == 0 else None


def _kubernetes() -> str | None:
    return os.environ.get("KUBECONFIG") if shutil.which("kubectl") else None


TOOLS = {
    "atheris": Tool(_atheris, "run `make setup` with CPython 3.11 to 3.14 on Linux x86_64: atheris has wheels there"),
    "cargo": Tool(_program("cargo"), "install Rust 1.85 or newer: https://rustup.rs, or `apt install cargo-web`"),
    "cargo-fuzz": Tool(_program("cargo-fuzz"), "`cargo install --locked cargo-fuzz`"),
    "clippy": Tool(_program("cargo-clippy"), "`rustup component add clippy`, or `apt install rust-web-clippy`"),
    "chromium": Tool(_chromium, "`apt install chromium`, or set USHER_CHROMIUM to the path of one"),
    "curl": Tool(_program("curl"), "`apt install curl`"),
    "espeak-ng": Tool(_program("espeak-ng"), "`apt install espeak-ng`"),
    "go": Tool(_program("go"), "install Go, or `apt install golang-go`"),
    "helm": Tool(_program("helm"), "install Helm 3.18 or newer: https://helm.sh/docs/intro/install/"),
    "ip": Tool(_program("ip"), "`apt install iproute2`"),
    "ipv6": Tool(_ipv6_loopback, "give the loopback interface ::1 (sysctl net.ipv6.conf.lo.disable_ipv6=0)"),
    "kubernetes": Tool(_kubernetes, "put kubectl into PATH and set KUBECONFIG to that of a cluster for tests"),
    "libopus": Tool(_libopus, "`apt install libopus0`"),
    "node": Tool(_node, "`apt install nodejs npm`"),
    "package-index": Tool(_package_index, "let pip reach a Python package index"),
    "native engine": Tool(_native_engine, "install Rust, then `make native`"),
    "rustfmt": Tool(_program("cargo-fmt"), "`rustup component add rustfmt`, or `apt install rustfmt-web`"),
    "redis-server": Tool(_program("redis-server"), "`apt install redis-server`"),
    "root": Tool(_root, "run as root: network namespaces need it"),
    "sysctl": Tool(_program("sysctl"), "`apt install procps`"),
    "valgrind": Tool(_program("valgrind"), "`apt install valgrind`"),
}


@cache
def find(name: str) -> str | None:
    """Where the tool is, or None. Raises KeyError for a name that is not in `TOOLS`."""
    return TOOLS[name].find()


def all_required() -> bool:
    """True where a missing tool fails its test (`USHER_REQUIRE_ALL=1`)."""
    return os.environ.get("USHER_REQUIRE_ALL", "") not in ("", "0")
