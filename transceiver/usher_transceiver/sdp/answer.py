from usher_transceiver.sdp.model import LocalDescription, Offer


def build_answer(offer: Offer, local: LocalDescription) -> str:
    """The SDP answer, CRLF lines."""
    raise NotImplementedError
