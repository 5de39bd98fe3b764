"""The error table of docs/http-api.md against the code: every status and code that signaling answers, and no other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import usher_signaling
from tests.pages import ROOT, codes, rows
from usher_signaling.errors import PLAIN_CODES

PACKAGE = Path(usher_signaling.__file__).parent
WRITTEN_OTHERWISE = {
    (400, "bad_http"),  # by the HTTP parser, before there is a request
    (400, "bad_sdp"),  # RemoteErrors, whose reason becomes the code
    (400, "session_too_large"),
    (400, "invalid_metadata"),
}
STATUS_OF = {"unavailable": 503, "_unauthorised": 401, "_too_many": 429}


def answered() -> Iterator[tuple[int, str]]:
    """Status and code wherever the code makes an error."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            literals = [argument.value if isinstance(argument, ast.Constant) else None for argument in node.args[:2]]
            match literals:
                case [int(status), str(code)] if name == "ApiError":
                    yield status, code
                case [str(code), *_] if name in STATUS_OF:
                    yield STATUS_OF[name], code


def test_the_page_lists_every_error_and_no_other() -> None:
    page = [row.cells for row in rows(ROOT / "docs" / "http-api.md") if row.cells[0].isdigit()]
    listed = {(int(status), code) for status, named, _ in page for code in codes(named)}
    known = {*answered(), *WRITTEN_OTHERWISE, *((s, c) for s, c in PLAIN_CODES.items())}
    assert sorted(known - listed) == []
    assert sorted(listed - known) == []
    assert all(meaning for *_, meaning in page)
