"""Packets sent again for a client that asks (RFC 4585 section 6.2.1)."""

import os
from dataclasses import replace
from random import Random

import pytest

from tests.media_network import OURS, THEIRS, Ear, NumberCodec
from usher_core.errors import RemoteError
from usher_core.rtp import is_rtcp
from usher_transceiver.media.rtcp import Nack, parse_rtcp
from usher_transceiver.media.rtp import parse_rtp
from usher_transceiver.media.stream import AudioStream
from usher_transceiver.srtp import PROFILES, Srtp

LOUD = bytes((1, 64)) * 480


def nack(*entries: tuple[int, int], ssrc: int = OURS.ssrc) -> bytes:
    body = THEIRS.to_bytes(4) + ssrc.to_bytes(4) + b"".join(a.to_bytes(2) + b.to_bytes(2) for a, b in entries)
    return bytes((0x81, 205)) + (len(body) // 4).to_bytes(2) + body


def test_a_nack_names_a_packet_and_any_of_the_16_after_it_across_the_wrap() -> None:
    assert parse_rtcp(nack((65_535, 0b1000_0000_0000_0101))) == [Nack(OURS.ssrc, (65_535, 0, 2, 15))]
    with pytest.raises(RemoteError):
        parse_rtcp(bytes.fromhex("81cd000100000001"))


def test_a_nack_cannot_make_us_look_without_end() -> None:
    [item] = parse_rtcp(nack(*[(number, 0xFFFF) for number in range(300)]))
    assert isinstance(item, Nack)
    assert len(item.sequences) == 16 * 17


def speak(stream: AudioStream, ticks: range) -> list[bytes]:
    return [packet for tick in ticks for packet in stream.tick(tick * 0.02) if not is_rtcp(packet)]


def test_what_is_missed_is_sent_again_as_it_was_with_the_next_tick_and_twice_at_most() -> None:
    stream = AudioStream(replace(OURS, answers_nack=True), NumberCodec(), Ear(), 0.0, Random(1))
    stream.play(LOUD * 60)
    sent = speak(stream, range(50))
    newest = parse_rtp(sent[-1]).sequence
    stream.on_rtcp(1.0, nack((newest - 3 & 0xFFFF, 0b1)))
    stream.on_rtcp(1.0, nack((newest - 3 & 0xFFFF, 0), ssrc=7))  # of somebody else
    assert speak(stream, range(50, 51))[1:] == [sent[-4], sent[-3]]
    for tick in range(51, 54):
        stream.on_rtcp(1.0, nack((newest - 3 & 0xFFFF, 0)))
        again = speak(stream, range(tick, tick + 1))[1:]
        assert again == ([sent[-4]] if tick == 51 else [])
    stats = stream.stats(1.1)
    assert (stats.resent, stats.packets_sent) == (3, 54)


def test_only_the_last_400_ms_are_kept() -> None:
    stream = AudioStream(replace(OURS, answers_nack=True), NumberCodec(), Ear(), 0.0, Random(1))
    stream.play(LOUD * 60)
    first = parse_rtp(speak(stream, range(50))[0]).sequence
    stream.on_rtcp(1.0, nack(*[(first + 17 * entry & 0xFFFF, 0xFFFF) for entry in range(3)]))
    assert len(speak(stream, range(50, 51))) == 1 + 20


def test_without_agreement_nothing_is_sent_again() -> None:
    stream = AudioStream(OURS, NumberCodec(), Ear(), 0.0, Random(1))
    stream.play(LOUD * 10)
    [packet, *_] = speak(stream, range(5))
    stream.on_rtcp(0.1, nack((parse_rtp(packet).sequence, 0xFFFF)))
    assert len(speak(stream, range(5, 6))) == 1


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name.decode())
def test_srtp_protects_a_packet_again_into_the_same_bytes(profile) -> None:
    srtp = Srtp(profile, os.urandom(profile.keying_length), "server")
    packets = [bytes((0x80, 111)) + number.to_bytes(2) + bytes(8) + b"speech" for number in range(30)]
    protected = [srtp.protect(packet) for packet in packets]
    assert srtp.protect(packets[10]) == protected[10]
