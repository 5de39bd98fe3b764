"""The Rust side of the relay by its own tools: format, lints, tests, licences."""

import json
import os
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "relay" / "native"
LICENCES = NATIVE / "licences.txt"
ALLOWED = {"Apache-2.0", "BSD-3-Clause", "MIT", "Unicode-3.0", "Zlib"}
"""Nothing asks more of who ships a binary than to name the authors. `OR` lets us choose, `AND` does not."""

pytestmark = [pytest.mark.programs, pytest.mark.needs("cargo"), pytest.mark.timeout(900)]


def cargo(*arguments: str) -> str:
    done = subprocess.run(
        ["cargo", *arguments], cwd=NATIVE, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("rustfmt")
def test_it_is_formatted() -> None:
    cargo("fmt", "--all", "--check")


@pytest.mark.needs("clippy")
def test_clippy_has_nothing_to_say() -> None:
    cargo("clippy", "--locked", "--all-targets", "--quiet", "--", "--deny", "warnings")


def test_its_own_tests_pass() -> None:
    cargo("test", "--locked", "--quiet")


def test_all_unsafe_code_is_in_the_module_of_system_calls() -> None:
    with_unsafe = {
        str(file.relative_to(NATIVE))
        for crate in ("path", "engine")
        for file in (NATIVE / crate).rglob("*.rs")
        if any(word in file.read_text() for word in ("unsafe {", "unsafe fn", "unsafe impl"))
    }
    assert with_unsafe == {"engine/src/sys.rs"}


def test_every_crate_that_is_shipped_has_a_licence_that_we_may_use() -> None:
    found = shipped_licences()
    for crate, licence in found.items():
        for part in licence.replace("/", " OR ").split(" AND "):
            assert set(part.strip(" ()").split(" OR ")) & ALLOWED, f"{crate}: {licence}"
    text = "".join(f"{crate}: {licence}\n" for crate, licence in sorted(found.items()))
    assert LICENCES.read_text() == text, f"the list has changed; it is now\n{text}"


def shipped_licences() -> dict[str, str]:
    """Crate and version → licence, of all that the wheel is built from on Linux."""
    listed = cargo(
        "tree",
        "--locked",
        "--package",
        "usher-relay-native",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--target",
        "x86_64-unknown-linux-gnu",
        "--format",
        "{p}",
    )
    names = {tuple(line.split()[:2]) for line in listed.splitlines() if line and "(/" not in line}
    packages = json.loads(cargo("metadata", "--locked", "--format-version", "1"))["packages"]
    licences = {(package["name"], f"v{package['version']}"): package["license"] for package in packages}
    return {name: licences[name, version] or "none" for name, version in names}
