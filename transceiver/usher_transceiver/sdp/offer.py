from usher_transceiver.sdp.model import Offer


def parse_offer(text: str) -> Offer:
    """Read an SDP offer. Raises RemoteError (`bad_sdp`) that names line number and text."""
    raise NotImplementedError
