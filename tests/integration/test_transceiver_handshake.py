"""DTLS as real clients bring it: two datagrams in any order, large ones, lost ones, RSA, SHA1_80 only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raw_client import RawClient
from tests.transceiver_rig import rig, until
from usher_core.datagram import DatagramClass, classify

pytestmark = pytest.mark.programs


def is_dtls(payload: bytes) -> bool:
    return classify(payload) is DatagramClass.DTLS


@pytest.mark.parametrize("swapped", [False, True])
async def test_a_client_hello_in_two_datagrams_connects_in_either_order(tmp_path: Path, swapped: bool) -> None:
    # Chromium: 1200 + 263 bytes (clients.md item 2).
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000, mtu=1200, padding=1250)
        await client.create()
        client.check(nominate=True)
        await until(lambda: client.responses, "answered")
        hello = client.flight()
        assert len(hello) == 2
        assert len(hello[0]) > 1100
        for datagram in reversed(hello) if swapped else hello:
            client.send(datagram)
        await client.connected()


@pytest.mark.parametrize("swapped", [False, True])
async def test_a_datagram_of_1408_bytes_comes_through_a_hop_of_mtu_1400_in_halves(
    tmp_path: Path, swapped: bool
) -> None:
    # Firefox (clients.md items 1 and 2).
    async with rig(tmp_path) as running:
        running.relay.swap_halves = swapped
        client = RawClient(running, 2000, mtu=1408, padding=1250)
        await client.create()
        client.check(nominate=True)
        await until(lambda: client.responses, "answered")
        hello = client.flight()
        assert [len(datagram) > 1349 for datagram in hello] == [True, False]
        for datagram in hello:
            client.send(datagram)
        await client.connected()
        assert running.transceiver.mux.joiner.expired == 0


async def test_dtls_before_any_use_candidate_is_taken(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        await client.create()
        client.check(nominate=False)
        await until(lambda: client.responses, "answered")
        client.handshake()
        await client.connected()


async def test_dtls_from_an_address_without_a_check_is_dropped(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        await client.create()
        client.handshake()
        await until(lambda: running.drops["unknown_client"], "dropped")
        assert client.dtls_in == []


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_first_flight_of_ours_costs_less_than_a_second(tmp_path: Path, lost: int) -> None:
    async with rig(tmp_path) as running:
        losses = 0

        def keep_down(_path: object, payload: bytes) -> bool:
            nonlocal losses
            losses += is_dtls(payload)
            return not is_dtls(payload) or losses > lost

        running.relay.keep_down = keep_down
        client = running.client()
        session = await client.call()
        dtls_ms = session.info(running.transceiver.sessions.clock()).timings.dtls_ms
        assert losses > lost
        assert dtls_ms is not None
        assert dtls_ms < 1000
        await until(client.hears_tone, "the tone is heard")


async def test_a_lost_last_flight_of_ours_is_repeated(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        await client.create()
        seen = 0

        def keep_down(_path: object, payload: bytes) -> bool:
            nonlocal seen
            seen += is_dtls(payload)
            return not is_dtls(payload) or seen != 2

        running.relay.keep_down = keep_down
        await client.connect()
        assert seen == 3


async def test_a_lost_client_hello_of_ours_is_repeated(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        running.relay.keep_down = lambda _path, payload: not (is_dtls(payload) and len(hellos) < 1 and _note(payload))
        hellos: list[bytes] = []

        def _note(payload: bytes) -> bool:
            hellos.append(payload)
            return True

        client = RawClient(running, 2000, setup="passive")
        await client.create()
        await client.connect()
        assert hellos


@pytest.mark.parametrize("setup", ["active", "passive"])
@pytest.mark.parametrize("bits", [2048, 1024])
async def test_rsa_clients_with_sha1_80_and_a_small_mtu_connect_in_both_roles(
    tmp_path: Path, setup: str, bits: int
) -> None:
    # GStreamer 1.22: RSA certificate in fragments of about 230 bytes, SHA1_80 only (clients.md items 2, 11, 12).
    async with rig(tmp_path) as running:
        client = RawClient(
            running, 2000, setup=setup, mtu=256, key="rsa", bits=bits, profiles=b"SRTP_AES128_CM_SHA1_80"
        )
        await client.create()
        await client.connect()
        client.speak()
        await until(lambda: client.session.info(0).timings.first_audio_in_ms is not None, "audio arrived")


@pytest.mark.parametrize("profiles", [b"SRTP_AES128_CM_SHA1_80", b"SRTP_AEAD_AES_128_GCM", b"SRTP_AEAD_AES_256_GCM"])
async def test_each_srtp_profile_carries_audio_both_ways(tmp_path: Path, profiles: bytes) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000, profiles=profiles)
        session = await client.create()
        await client.connect()
        client.speak()
        await until(lambda: session.sources, "authenticated")
        session.stream.play(b"\x10\x20" * 4800)
        await until(lambda: client.rtp, "audio comes")
        assert client.srtp is not None
        assert client.srtp.unprotect(client.rtp[0]).plain[1] & 0x7F in (111, 200 & 0x7F, 201 & 0x7F)


async def test_a_wrong_fingerprint_ends_the_call(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        client.fingerprint = ":".join(["00"] * 32)
        session = await client.create()
        client.check(nominate=True)
        await until(lambda: client.responses, "answered")
        client.handshake()
        await until(lambda: session.state == "ended", "ended")
        assert session.end_reason == "dtls_failed"
