"""A stock client behind a NAT that changes its port, and behind a bad network. The proxy is in `udp_proxy.py`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.fleet import Caller, Fleet, calling, running_fleet
from tests.integration.udp_proxy import UdpProxy, Weather

pytestmark = [pytest.mark.programs, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


async def connected(caller: Caller) -> None:
    await asyncio.to_thread(caller.wait_until_connected, 1)


async def outcome(caller: Caller) -> dict[str, Any]:
    result = await asyncio.to_thread(caller.result)
    call: dict[str, Any] = result["calls"][0]
    return call


async def test_a_nat_that_changes_the_port_costs_a_speaking_client_no_audible_gap(fleet: Fleet) -> None:
    async with UdpProxy(fleet.udp) as proxy:
        via = "{}:{}".format(*proxy.address)
        with calling(fleet.url, "--seconds=8", f"--via={via}") as caller:
            await connected(caller)
            for _ in range(3):
                await asyncio.sleep(2)
                before = proxy.outer_ports
                proxy.rebind()
                assert not set(before) & set(proxy.outer_ports)
            call = await outcome(caller)
    print(f"\nNAT rebinding: longest gap {call['longest_gap_ms']} ms of 3; this client late by {call['late_ms']} ms")
    assert call["ok"], call
    assert call["longest_gap_ms"] <= 200 + call["late_ms"]


@pytest.mark.timed
async def test_loss_and_jitter_cost_no_stall_and_no_growing_delay(fleet: Fleet) -> None:
    async with UdpProxy(fleet.udp, Weather(loss=0.05, jitter_s=0.03)) as proxy:
        via = "{}:{}".format(*proxy.address)
        with calling(fleet.url, "--seconds=12", f"--via={via}") as caller:
            call = await outcome(caller)
        assert proxy.lost / (proxy.lost + proxy.forwarded) == pytest.approx(0.05, abs=0.02)
    print(
        f"\n5 % loss, 30 ms jitter, each way: longest gap {call['longest_gap_ms']} ms (in the audio sent to us: "
        f"{call['content_gap_ms']} ms), delay {call['delay_ms']} ms, its growth in 12 s {call['delay_growth_ms']} ms, "
        f"lost {call['lost']} of {call['lost'] + call['received']}"
    )
    assert call["tone_hz"] == pytest.approx(440, abs=2)
    # What is lost on the way to us is not there: two packets in a row are 40 ms, three 60 ms; 30 ms of jitter on top.
    assert call["longest_gap_ms"] <= 140 + call["late_ms"]
    assert call["delay_growth_ms"] <= 40
