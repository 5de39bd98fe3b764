"""SDP as numbered lines (RFC 8866 §5), bounded before use, with errors that name the line.

Used by offers (transceiver) and by WHIP fragments (signaling). Every error is a
RemoteError with the reason `bad_sdp`, and its text is short, printable and free of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from usher_core.errors import RemoteError

MAX_BYTES: Final = 65_536  # a browser's offer with video and all candidates has about 10,000
MAX_LINES: Final = 2_000
MAX_SECTIONS: Final = 32  # every section costs one in the answer

TOKEN: Final = r"[!#$%&'*+\-.0-9A-Z^_`a-z{|}~]+"  # RFC 8866 §9: token

_MAX_MID = 64
_MID = re.compile(TOKEN)
_QUOTED_CHARACTERS = 60
_SECRET = re.compile(r"(a=(?:ice-pwd|crypto):).*", re.DOTALL)
_LINE = re.compile(r"([a-z])=(.*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but TAB, and LF which ends a line
_MEDIA = re.compile(rf"({TOKEN}) ([0-9]{{1,5}})(?:/[0-9]+)? ({TOKEN}(?:/{TOKEN})*)((?: {TOKEN})+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line `kind=value`. For an attribute line, `name` and `argument` are its two parts."""

    number: int
    kind: str
    value: str
    name: str = ""
    argument: str = ""

    def error(self, expected: str) -> RemoteError:
        """The error for this line; `expected` says what it should have been."""
        return _error(self.number, expected, f"{self.kind}={self.value}")


@dataclass(frozen=True, slots=True)
class MediaLine:
    """The m= line of a section (RFC 8866 §5.14): media, port (0 to 65535), profile and formats."""

    line: Line
    media: str
    port: int
    profile: str
    formats: tuple[str, ...]


class Level:
    """The session level or one media section: its attributes by name, in order."""

    __slots__ = ("_attributes", "_session")

    def __init__(self, lines: Iterable[Line], session: Level | None = None) -> None:
        self._session = session
        self._attributes: dict[str, list[Line]] = {}
        for line in lines:
            if line.kind == "a":
                self._attributes.setdefault(line.name, []).append(line)

    def own(self, name: str) -> list[Line]:
        """All lines of an attribute at this level, in order."""
        return self._attributes.get(name, [])

    def all(self, name: str) -> list[Line]:
        """All lines of an attribute: this level's, and if it has none the session's (RFC 8866 §5.13)."""
        return self.own(name) or (self._session.own(name) if self._session else [])

    def first(self, name: str) -> Line | None:
        """The first of all(name), None if there is none."""
        return next(iter(self.all(name)), None)


@dataclass(frozen=True, slots=True)
class Document:
    """A session description or fragment: its first line, the session level and its media sections in order."""

    first: Line | None
    session: Level
    sections: tuple[tuple[MediaLine, Level], ...]


def read_document(text: str | bytes) -> Document:
    """Split a description into levels.

    Lines end with LF or CRLF. Blank lines and spaces at the end of a line are skipped, since
    clients that put their SDP together by hand have them.
    Raises RemoteError for a description over 64 KiB, not in UTF-8, with control characters, with too
    many lines or sections, or with a line that is not `x=value`.
    """
    lines = _read_lines(text)
    levels: list[list[Line]] = [[]]
    media: list[MediaLine] = []
    for line in lines:
        if line.kind == "m":
            if len(media) == MAX_SECTIONS:
                raise line.error(f"expected at most {MAX_SECTIONS} media sections")
            media.append(_parse_media(line))
            levels.append([])
        else:
            levels[-1].append(line)
    session = Level(levels[0])
    sections = (Level(level, session) for level in levels[1:])
    return Document(lines[0] if lines else None, session, tuple(zip(media, sections, strict=True)))


def checked_mid(line: Line) -> str:
    """The value of an `a=mid` line (RFC 5888 §4). Raises RemoteError if it is not 1 to 64 token characters."""
    if len(line.argument) > _MAX_MID or not _MID.fullmatch(line.argument):
        raise line.error(f"expected a mid of 1 to {_MAX_MID} token characters")
    return line.argument


def bundle_groups(session: Level) -> list[tuple[str, ...]]:
    """The mids of each BUNDLE group (RFC 9143 §5). Raises RemoteError if one is not a mid."""
    groups = []
    for line in session.own("group"):
        semantics, _, rest = line.argument.partition(" ")
        if semantics != "BUNDLE":
            continue
        mids = tuple(rest.split())
        if not all(len(mid) <= _MAX_MID and _MID.fullmatch(mid) for mid in mids):
            raise line.error(f"expected mids of 1 to {_MAX_MID} token characters")
        groups.append(mids)
    return groups


def _read_lines(text: str | bytes) -> list[Line]:
    raw_lines = _decode(text).split("\n")
    if len(raw_lines) > MAX_LINES:
        raise RemoteError("bad_sdp", f"SDP has more than {MAX_LINES} lines")
    lines = []
    for number, raw in enumerate(raw_lines, start=1):
        stripped = raw.rstrip(" \t\r")
        if not stripped:
            continue
        if control := _CONTROL.search(stripped):
            raise _error(number, f"expected no control character U+{ord(control[0]):04X}", stripped)
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise _error(number, "expected <letter>=<value>", stripped)
        kind, value = match.groups()
        name, _, argument = value.partition(":") if kind == "a" else ("", "", "")
        lines.append(Line(number, kind, value, name, argument))
    return lines


def _decode(text: str | bytes) -> str:
    """Text of at most 64 KiB of valid UTF-8."""
    try:
        encoded = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:  # a lone surrogate, from a JSON escape
        assert isinstance(text, str)
        number = text.count("\n", 0, error.start) + 1
        raise RemoteError("bad_sdp", f"SDP line {number}: expected valid Unicode") from None
    if len(encoded) > MAX_BYTES:
        raise RemoteError("bad_sdp", f"SDP has {len(encoded)} bytes, the limit is {MAX_BYTES}")
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        number = text.count(b"\n", 0, error.start) + 1
        raise RemoteError("bad_sdp", f"SDP line {number}: expected UTF-8") from None


def _parse_media(line: Line) -> MediaLine:
    match = _MEDIA.fullmatch(line.value)
    if match is None:
        raise line.error("expected m=<media> <port> <profile> <formats>")
    media, port, profile, formats = match.groups()
    if int(port) > 65535:
        raise line.error("expected a port of 0 to 65535")
    return MediaLine(line, media, int(port), profile, tuple(formats.split()))


def _error(number: int, expected: str, text: str) -> RemoteError:
    text = _SECRET.sub(r"\1(hidden)", text)
    shown = "".join(c if c.isprintable() else "?" for c in text[:_QUOTED_CHARACTERS])
    ellipsis = "…" if len(text) > _QUOTED_CHARACTERS else ""
    return RemoteError("bad_sdp", f"SDP line {number}: {expected}, got {shown}{ellipsis}")
