"""kubectl and helm as tests call them, and waiting for what a cluster does in its own time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

POLL_S = 0.2


def run(*command: str, given: str = "", limit: float = 120, fails: bool = False) -> str:
    """Run a command; return what it prints, or what it complains of where it has to fail. `limit` in seconds."""
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit, check=False)
    assert (ended.returncode != 0) == fails, f"{' '.join(command)}\n{ended.stdout}{ended.stderr}"
    return ended.stderr if fails else ended.stdout


def kubectl(*arguments: str, given: str = "", limit: float = 120, fails: bool = False) -> str:
    return run("kubectl", *arguments, given=given, limit=limit, fails=fails)


def wait_for(what: str, look: Callable[[], T | None], limit: float = 60) -> T:
    """Return what `look` finds once that is something. Raises AssertionError after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {limit:.0f} s: {what}"
        time.sleep(POLL_S)


class Namespace:
    """kubectl within a namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, given: str = "", limit: float = 120, fails: bool = False) -> str:
        return kubectl("--namespace", self.name, *arguments, given=given, limit=limit, fails=fails)

    def get(self, what: str) -> Json:
        found: Json = json.loads(self.kubectl("get", what, "--output=json"))
        return found

    def list(self, what: str, selector: str = "") -> list[Json]:
        found: list[Json] = json.loads(self.kubectl("get", what, f"--selector={selector}", "--output=json"))["items"]
        return found

    def patch(self, what: str, change: Json, *flags: str) -> None:
        self.kubectl("patch", what, "--type=merge", f"--patch={json.dumps(change)}", *flags)

    def apply(self, *objects: Json) -> None:
        self.kubectl("apply", "--filename=-", given="\n---\n".join(map(json.dumps, objects)))
