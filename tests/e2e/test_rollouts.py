"""Rolling updates of relays, transceivers and signaling under calls: another image tag, and no live call lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import (
    CHART,
    RELAY_PODS,
    RELAYS,
    RELEASE,
    SIGNALING_PODS,
    SMALL_RELAYS,
    TRANSCEIVER_PODS,
    TRANSCEIVERS,
    Fleet,
    image_of,
    is_ready,
    pod_id,
    values,
)
from tests.e2e.images import Images
from tests.e2e.kube import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

MAX_MOVE_MS = 5_000
"""docs/wire.md §6: a flow that moves to another relay waits for the client's next check at most, and its answer."""


def are_updated(fleet: Fleet, selector: str, image: str) -> bool:
    """Whether as many pods as before run the new image, beside old ones on their way out."""
    updated = [pod for pod in fleet.pods(selector) if image_of(pod) == image and is_ready(pod)]
    staying = [pod for pod in fleet.pods(selector) if "deletionTimestamp" not in pod["metadata"]]
    return len(updated) == len(staying) == 2


@pytest.fixture
def own_images(fleet: Fleet) -> Iterator[Fleet]:
    """Pools that name an image; in the end they follow the operator's default again."""
    yield fleet
    for pool in (RELAYS, TRANSCEIVERS):
        fleet.namespace.patch(pool, {"spec": {"image": None}})


def test_relays_roll_without_losing_a_call(own_images: Fleet, second_images: Images, figure: Figure) -> None:
    fleet, image = own_images, second_images.name("relay")
    grace = float(SMALL_RELAYS["drain"]["gracePeriod"].removesuffix("s"))
    with fleet.calls(8, light=True) as calls:
        calls.until_up()
        began = time.monotonic()
        fleet.namespace.patch(RELAYS, {"spec": {"image": image}})
        wait_for("two relays of the new image", lambda: are_updated(fleet, RELAY_PODS, image), 120)
        figure("both relays were new after", f"{time.monotonic() - began:.1f} s")
        assert len(fleet.pods(RELAY_PODS)) == 4, "old relays forward until their flows have moved"
        late = fleet.call(seconds=2, count=4)
        wait_for("the old relays are gone", lambda: len(fleet.pods(RELAY_PODS)) == 2, grace + 30)
        figure("the old ones were gone after", f"{time.monotonic() - began:.1f} s")
        outcome = calls.end()
    figure("calls during all of it", outcome)
    figure("calls placed meanwhile", late)
    assert outcome.lost == late.lost == 0
    assert outcome.longest_gap_ms <= MAX_MOVE_MS


def test_transceivers_roll_and_old_ones_end_with_their_calls(
    own_images: Fleet, second_images: Images, figure: Figure
) -> None:
    fleet, image = own_images, second_images.name("transceiver")
    before = {pod_id(pod) for pod in fleet.pods(TRANSCEIVER_PODS)}
    with fleet.calls(8, light=True) as calls:
        calls.until_up()
        began = time.monotonic()
        fleet.namespace.patch(TRANSCEIVERS, {"spec": {"image": image}})
        wait_for("two transceivers of the new image", lambda: are_updated(fleet, TRANSCEIVER_PODS, image), 120)
        figure("both transceivers were new after", f"{time.monotonic() - began:.1f} s")
        assert len(fleet.pods(TRANSCEIVER_PODS)) == 4, "old transceivers stay while their calls last"
        late = fleet.call(seconds=2, count=4)
        outcome = calls.end()
    ended = time.monotonic()
    figure("calls during all of it", outcome)
    figure("calls placed meanwhile", late)
    assert outcome.is_unbroken
    assert late.lost == 0
    wait_for("the old transceivers are gone", lambda: len(fleet.pods(TRANSCEIVER_PODS)) == 2, 60)
    figure("the old ones were gone after the calls by", f"{time.monotonic() - ended:.1f} s")
    after = {pod_id(pod) for pod in fleet.pods(TRANSCEIVER_PODS)}
    assert not before & after, "ids are never used again"
    assert {int(name.split("/")[1]) for name in late.transceivers} <= after


def test_signaling_rolls_while_calls_are_placed(fleet: Fleet, second_images: Images, figure: Figure) -> None:
    image = second_images.name("signaling")
    given = values(fleet.namespace.name, fleet.images)
    updated = {**given, "signaling": {**given["signaling"], "image": {"tag": second_images.tag}}}
    placed = lost = 0
    slowest = 0.0
    try:
        with fleet.calls(4, light=True) as calls:
            calls.until_up()
            began = time.monotonic()
            fleet.helm("upgrade", RELEASE, CHART, given=updated)
            while not (are_updated(fleet, SIGNALING_PODS, image) and len(fleet.pods(SIGNALING_PODS)) == 2):
                outcome = fleet.call(seconds=0.5, count=2)
                placed, lost = placed + outcome.count, lost + outcome.lost
                slowest = max(slowest, outcome.summary["offer_answer_ms"]["max"] if outcome.count else 0)
                assert time.monotonic() - began < 120
            figure("signaling was new after", f"{time.monotonic() - began:.1f} s")
            outcome = calls.end()
    finally:
        fleet.helm("upgrade", RELEASE, CHART, given=given)
    figure("calls placed meanwhile", f"{placed}, {lost} lost, slowest answer {slowest:.0f} ms")
    figure("calls during all of it", outcome)
    assert placed >= 4
    assert lost == 0
    assert outcome.is_unbroken
