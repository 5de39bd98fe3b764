"""The images of this source on the nodes of the cluster.

How images come there differs from cluster to cluster, so a command does it, named by the environment:

* `USHER_E2E_BUILD`: called as `COMMAND CONTEXT CONTAINERFILE TAG`; builds an image and loads it on all nodes. With kind
  a script of two lines: `docker build -f "$2" -t "$3" "$1"` and `kind load docker-image "$3"`.
* `USHER_E2E_TAG`: instead, images of this tag are there already, as `make images` names them.
* `USHER_E2E_SECOND_TAG`: with it, the tag of images for rollouts, which differ in nothing but their name.
* `USHER_E2E_REGISTRY`: what stands before their names (`localhost`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kube import kubectl
from tests.pages import ROOT

PROGRAMS = ("operator", "relay", "signaling", "transceiver")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "core", "relay", "transceiver", "signaling", "operator", "cli")
BUILD_LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Images:
    """`registry/usher-PROGRAM:tag` is on all nodes, for every program."""

    registry: str
    tag: str

    def name(self, program: str) -> str:
        return f"{self.registry}/usher-{program}:{self.tag}"


def provide() -> Images:
    """Build what the nodes don't have yet. Raises AssertionError in words."""
    registry = os.environ.get("USHER_E2E_REGISTRY", "localhost")
    if tag := os.environ.get("USHER_E2E_TAG"):
        return Images(registry, tag)
    images = Images(registry, _hash_of_sources())
    present = _on_all_nodes()
    for program in PROGRAMS:
        if images.name(program) not in present:
            build(program, images.name(program))
    return images


def provide_second(first: Images) -> Images:
    """The same programs under another tag, for rollouts. Raises AssertionError in words."""
    if tag := os.environ.get("USHER_E2E_SECOND_TAG"):
        return Images(first.registry, tag)
    images = Images(first.registry, f"{first.tag}-again")
    present = _on_all_nodes()
    for program in PROGRAMS:
        if images.name(program) not in present:
            build(program, images.name(program))
    return images


def build(program: str, name: str) -> None:
    """Build the image of a program under a name, and load it on all nodes."""
    command = os.environ.get("USHER_E2E_BUILD")
    assert command, "set USHER_E2E_BUILD to a command that builds and loads an image, or USHER_E2E_TAG (images.py)"
    words = [*shlex.split(command), str(ROOT), str(ROOT / "deploy" / f"{program}.Containerfile"), name]
    print(f"building {name}", file=sys.stderr, flush=True)
    built = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    assert built.returncode == 0, f"{shlex.join(words)}\n{built.stdout[-4000:]}{built.stderr[-4000:]}"


def _on_all_nodes() -> set[str]:
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    found = [{name for image in node["status"].get("images", ()) for name in image["names"] or ()} for node in nodes]
    return set.intersection(*found)


def _hash_of_sources() -> str:
    total = hashlib.sha256()
    for path in sorted(_files()):
        total.update(str(path.relative_to(ROOT)).encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _files() -> Iterator[Path]:
    yield from (ROOT / "deploy" / f"{program}.Containerfile" for program in PROGRAMS)
    for name in SOURCES:
        path = ROOT / name
        inner = path.rglob("*") if path.is_dir() else iter((path,))
        yield from (one for one in inner if one.is_file() and not _is_left_over(one))


def _is_left_over(path: Path) -> bool:
    return any(part == "__pycache__" or part.endswith(".egg-info") or part == "target" for part in path.parts)
