"""`application/trickle-ice-sdpfrag` (RFC 8840 §9), the body of WHIP PATCH requests and answers (RFC 9725 §4.3)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FragmentSection:
    """Candidates of one media section. `candidates` are values of `a=candidate` lines, unread.

    `media` is the value of the pseudo m-line; RFC 8840 §9 wants one but nobody reads it.
    """

    mid: str
    candidates: tuple[str, ...] = ()
    end_of_candidates: bool = False
    media: str = "audio 9 UDP/TLS/RTP/SAVPF 0"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment. `ufrag` and `password` are of the first level that has them, None if absent."""

    ufrag: str | None
    password: str | None
    sections: tuple[FragmentSection, ...] = ()
    bundle: tuple[str, ...] = ()
    end_of_candidates: bool = False
    ice_lite: bool = False
    ice_options: str = ""


def parse_fragment(text: str) -> Fragment:
    """Read a fragment. Raises RemoteError (`bad_sdp`) that names line number and text."""
    raise NotImplementedError


def build_fragment(fragment: Fragment) -> str:
    """Write a fragment, CRLF lines; parse_fragment reads the same value back."""
    raise NotImplementedError
