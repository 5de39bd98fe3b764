"""New keys under live calls: handed out, taken up by every pod that carries calls, used; and no call notices."""

from __future__ import annotations

import re
import sys
import time

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import RELAYS, TRANSCEIVERS, Fleet
from tests.e2e.kube import run, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

PROPAGATION_S = 150
"""A kubelet brings a changed Secret to its pods 60 to 90 s later, unless they change meanwhile."""
LOOKS_S = 75
"""The operator looks after keys every 30 s, with its looks at pools, every 30 s too."""


def keys(fleet: Fleet) -> dict[str, str]:
    """State of each ICE key, such as {"A": "active"}, as the status shows it."""
    lines = fleet.namespace.get(TRANSCEIVERS)["status"]["keyIDs"]
    return {found[1]: found[2] for line in lines if (found := re.match(r"ice/(\S+) (\S+)", line))}


def active(fleet: Fleet) -> list[str]:
    return [letter for letter, state in keys(fleet).items() if state == "active"]


def test_a_rotation_of_keys_is_not_heard(fleet: Fleet, figure: Figure) -> None:
    wait_for("no rotation is under way", lambda: "given" not in keys(fleet).values(), PROPAGATION_S)
    (before,) = active(fleet)
    with fleet.calls(4, light=True) as calls:
        calls.until_up()
        asked = time.monotonic()
        run(sys.executable, "-m", "usher_cli", "keys", "rotate", "--namespace", fleet.namespace.name)
        wait_for("a key is handed out", lambda: "given" in keys(fleet).values(), LOOKS_S)
        for pool in (RELAYS, TRANSCEIVERS):
            wait_for(f"{pool} says so", lambda pool=pool: condition(fleet, pool) == "Rotating", LOOKS_S)  # type: ignore[misc]
        assert active(fleet) == [before], "nobody uses a key before all hold it"
        fleet.bring_files("app.kubernetes.io/managed-by=usher-operator")
        wait_for("the new key is in use", lambda: active(fleet) != [before], PROPAGATION_S)
        figure("all pods held the new key, and it was in use after", f"{time.monotonic() - asked:.0f} s")
        new = fleet.call(seconds=2, count=4)
        outcome = calls.end()
    figure("calls meanwhile", outcome)
    figure("calls just after the switch", new)
    assert outcome.is_unbroken
    assert new.lost == 0
    assert before in keys(fleet), "the old key stays for the calls that it has"
    fleet.until_ready()


def condition(fleet: Fleet, pool: str) -> str:
    found = fleet.namespace.get(pool)["status"]["conditions"]
    return next(str(each["reason"]) for each in found if each["type"] == "KeysReady")
