"""The error table of docs/http-api.md against the code: every status and code that signaling answers, and no other.

Also those that its HTTP server answers by itself, and those of a transceiver that it hands on.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import usher_signaling
import usher_transceiver
from tests.pages import ROOT, codes, rows
from usher_core import sdplines
from usher_shell import http_protocol
from usher_signaling.calls import OFFER_FAULTS
from usher_signaling.errors import PLAIN_CODES
from usher_signaling.peer_regions.origin import INVALID_FORWARD, WRONG_TOKEN

PACKAGE = Path(usher_signaling.__file__).parent
WRITTEN_OTHERWISE = {
    (503, "too_many_requests"),  # by the HTTP server when all connections are busy
    (400, "invalid_metadata"),  # a RemoteError, whose reason becomes the code
    (400, "invalid_event_policy"),  # the same
    (403, WRONG_TOKEN),  # by its name, since peers read it
    (400, INVALID_FORWARD),  # the same
}
STATUS_OF = {"unavailable": 503, "_unauthorised": 401, "_too_many": 429}
ERRORS = {"ApiError", "_send_error", "_refuse"}
"""What makes an error of a status and a code."""

TRANSCEIVER = Path(usher_transceiver.__file__).parent
JUDGES = (*(TRANSCEIVER / "sdp").glob("*.py"), TRANSCEIVER / "session.py", Path(sdplines.__file__))
"""Where an offer or fragment is judged by RemoteErrors, which the internal API answers 400."""
GUARD = TRANSCEIVER / "http_guard.py"


def answered(*paths: Path) -> Iterator[tuple[int, str]]:
    """Status and code wherever the code makes an error."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            literals = [argument.value if isinstance(argument, ast.Constant) else None for argument in node.args[:2]]
            match literals:
                case [int(status), str(code)] if name in ERRORS:
                    yield status, code
                case [str(code), *_] if name in STATUS_OF:
                    yield STATUS_OF[name], code


def handed_on() -> Iterator[tuple[int, str]]:
    """Status and code of what a transceiver says of an offer, and signaling hands on."""
    for path in JUDGES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RemoteError":
                yield 400, ast.literal_eval(node.args[0])
    for node in ast.walk(ast.parse(GUARD.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "error_answer":
            kind, code = (ast.literal_eval(argument) for argument in node.args[:2])
            if kind == "invalid_request_error":
                yield 413, code
    for status, code in answered(TRANSCEIVER / "internal_api.py"):
        if status in OFFER_FAULTS:
            yield status, code


def test_the_page_lists_every_error_and_no_other() -> None:
    page = [row.cells for row in rows(ROOT / "docs" / "http-api.md") if row.cells[0].isdigit()]
    listed = {(int(status), code) for status, named, _ in page for code in codes(named)}
    known = {
        *answered(*PACKAGE.rglob("*.py"), Path(http_protocol.__file__)),
        *handed_on(),
        *WRITTEN_OTHERWISE,
        *((s, c) for s, c in PLAIN_CODES.items()),
    }
    assert sorted(known - listed) == []
    assert sorted(listed - known) == []
    assert all(meaning for *_, meaning in page)
