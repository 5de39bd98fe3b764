"""Stock aiortc makes the offer and takes our answer."""

from dataclasses import replace

import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from tests.sdp_samples import LOCAL
from usher_transceiver.sdp import Candidate, build_answer, parse_offer

# The discard port of this machine: the client sends its checks there, and nobody answers.
NOBODY = replace(LOCAL, candidates=(Candidate("127.0.0.1", 9),))


@pytest.mark.parametrize(
    ("ours", "direction"), [("sendrecv", "sendrecv"), ("sendonly", "recvonly"), ("recvonly", "sendonly")]
)
async def test_aiortc_takes_the_answer_to_its_offer(ours: str, direction: str) -> None:
    client = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    try:
        transceiver = client.addTransceiver("audio", direction=direction)
        client.createDataChannel("oai-events")
        await client.setLocalDescription(await client.createOffer())
        offer = parse_offer(client.localDescription.sdp)
        assert offer.audio.direction == ours
        answer = build_answer(offer, NOBODY)
        await client.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        assert client.signalingState == "stable"
        assert transceiver.currentDirection == direction
        assert (transceiver.receiver.track is not None) == offer.audio.sends
    finally:
        await client.close()
