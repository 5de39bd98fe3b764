"""Entity tags of WHIP sessions (RFC 9725 section 4.3.1, RFC 9110 section 8.8.3 and 13.1.1).

The tag names the ICE session, so it is made of the transceiver's ufrag of the newest generation. No replica has to
remember it: who knows the ufrag knows the tag.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from usher_core.errors import RemoteError

ANY = "*"
_ETAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAG = re.compile(_ETAG)
_LIST = re.compile(rf"{_ETAG}(?:[ \t]*,[ \t]*{_ETAG})*")


@dataclass(frozen=True, slots=True)
class IfMatch:
    """An If-Match header: `*`, or the tags in it."""

    any: bool
    tags: frozenset[str] = frozenset()

    def matches(self, tag: str) -> bool:
        """Compare strongly (RFC 9110 section 8.8.3.2): a weak tag is never equal."""
        return self.any or tag in self.tags


def entity_tag(ufrag: str) -> str:
    """Return the strong entity tag, quotes included, of the generation with this ufrag of ours."""
    return f'"{base64.urlsafe_b64encode(hashlib.sha256(ufrag.encode()).digest()[:12]).decode()}"'


def parse_if_match(text: str) -> IfMatch:
    """Parse the header. Raises RemoteError `if_match`.

    RFC 9725's own example writes the star in quotes, and clients copy it, so `"*"` means `*`.
    """
    value = text.strip()
    if value in (ANY, f'"{ANY}"'):
        return IfMatch(any=True)
    if not _LIST.fullmatch(value):
        raise RemoteError("if_match", 'If-Match is "*" or a list of quoted entity tags.')
    return IfMatch(any=False, tags=frozenset(_TAG.findall(value)))
