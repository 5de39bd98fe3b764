"""What one region tells another beside the request that it hands on, and how it proves who it is. No I/O.

Rules:
* Only a request with the region token comes from a peer. Without it the other headers are not looked at.
* They are read where they change something: at offers, closes, and requests about calls that are not ours. There a
  wrong token is refused, so that a misconfigured peer is noticed. Who asks about a call of ours needs none.
* What came from a peer is served here or refused, and never handed on again: no loops.
* The token says no more than that. Whose request it is its own API key says, which is checked here as anybody's.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from usher_core.decimals import read_decimal
from usher_core.errors import LocalError
from usher_core.internal_api import REQUEST_ID
from usher_signaling.errors import ApiError
from usher_signaling.regions import is_region

TOKEN_HEADER = "Usher-Region-Token"
REGION_HEADER = "Usher-Region"
REQUEST_ID_HEADER = "Usher-Request-Id"
DEADLINE_HEADER = "Usher-Deadline-Ms"
WRONG_TOKEN = "wrong_region_token"
INVALID_FORWARD = "invalid_forward"

MIN_TOKEN = 32
MAX_TOKENS = 8
MAX_DEADLINE_MS = 60_000

_TOKEN = re.compile(rf"[!-~]{{{MIN_TOKEN},512}}")
_REQUEST_ID = re.compile(REQUEST_ID)


class RegionTokens:
    """The tokens of a file: the first is sent, all are taken, so that one can be replaced without a gap."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self.sent = tokens[0]
        self._taken = tuple(token.encode() for token in tokens)

    def admit(self, token: str) -> bool:
        """Tell whether a token is one of ours, in a time that does not depend on it."""
        given = token.encode("latin-1", "replace")
        return any([hmac.compare_digest(given, taken) for taken in self._taken])  # noqa: C419 - all are compared


@dataclass(frozen=True, slots=True)
class Origin:
    """What a peer says of a request that it hands on.

    Args:
        region: the client's.
        request_id: of an offer, to close by.
        within: seconds that an offer may take here; None: as long as any.
    """

    region: str
    request_id: str | None = None
    within: float | None = None

    def headers(self, tokens: RegionTokens) -> dict[str, str]:
        """Return the headers that say so."""
        headers = {TOKEN_HEADER: tokens.sent, REGION_HEADER: self.region}
        if self.request_id is not None:
            headers[REQUEST_ID_HEADER] = self.request_id
        if self.within is not None:
            headers[DEADLINE_HEADER] = str(max(1, int(self.within * 1000)))
        return headers


def read_origin(tokens: RegionTokens, headers: Headers) -> Origin | None:
    """Return what a peer says, None for a request that no peer sent. Raises ApiError 403 or 400."""
    given = headers.getlist(TOKEN_HEADER)
    if not given:
        return None
    if len(given) != 1 or not tokens.admit(given[0]):
        message = "This is no region token of ours (--region-token-file)."
        raise ApiError(403, WRONG_TOKEN, message, param=TOKEN_HEADER)
    region = headers.get(REGION_HEADER, "")
    request_id = headers.get(REQUEST_ID_HEADER)
    deadline = headers.get(DEADLINE_HEADER)
    if not is_region(region):
        raise _malformed(REGION_HEADER)
    if request_id is not None and not is_request_id(request_id):
        raise _malformed(REQUEST_ID_HEADER)
    if deadline is None:
        return Origin(region, request_id)
    milliseconds = read_decimal(deadline, MAX_DEADLINE_MS, 1)
    if milliseconds is None:
        raise _malformed(DEADLINE_HEADER)
    return Origin(region, request_id, milliseconds / 1000)


def is_request_id(text: str) -> bool:
    """Tell whether a text can name a request, as the internal API has it."""
    return _REQUEST_ID.fullmatch(text) is not None


def parse_region_tokens(text: str) -> RegionTokens:
    """Return the tokens in the text of a file, one a line. Raises LocalError, which does not quote them."""
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not 1 <= len(lines) <= MAX_TOKENS or not all(_TOKEN.fullmatch(line) for line in lines):
        raise LocalError(
            f"the region token file is expected to have 1 to {MAX_TOKENS} lines of {MIN_TOKEN} or more printable ASCII "
            "characters",
            "make one with `openssl rand -hex 32`",
        )
    return RegionTokens(lines)


def _malformed(header: str) -> ApiError:
    return ApiError(400, INVALID_FORWARD, f"{header} is not as a peer of this version writes it.", param=header)
