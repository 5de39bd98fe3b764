"""`application/trickle-ice-sdpfrag` (RFC 8840 §9), the body of WHIP PATCH requests and answers (RFC 9725 §4.3).

Rules:
* Candidates are carried, not read: an ICE-lite server learns addresses from checks alone.
* Credentials may stand at session or media level; the first found counts, since a call has one transport.
* Sections without a mid are skipped: RFC 8840 §9 names a section by its mid, never by its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from usher_core.ice_attributes import checked_pwd, checked_ufrag
from usher_core.sdplines import Document, Level, bundle_groups, checked_mid, read_document


@dataclass(frozen=True, slots=True)
class FragmentSection:
    """Candidates of one media section, as values of `a=candidate` lines (RFC 8839 §5.1).

    `media` is the value of the pseudo m-line, which RFC 8840 §9 wants and nobody reads.
    """

    mid: str
    candidates: tuple[str, ...] = ()
    end_of_candidates: bool = False
    media: str = "audio 9 UDP/TLS/RTP/SAVPF 0"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment. `ufrag` and `pwd` are both there or both None.

    `bundle` are the mids of the BUNDLE group, `ice_options` the words of the line of that name.
    `end_of_candidates` is the session level's: no section has more candidates to come.
    """

    ufrag: str | None = None
    pwd: str | None = field(default=None, repr=False)
    sections: tuple[FragmentSection, ...] = ()
    bundle: tuple[str, ...] = ()
    end_of_candidates: bool = False
    ice_lite: bool = False
    ice_options: tuple[str, ...] = ()


def parse_fragment(text: str | bytes) -> Fragment:
    """Read a fragment of at most 64 KiB. An empty one is valid and says nothing.

    Raises RemoteError with the reason `bad_sdp`; its text names the line.
    """
    document = read_document(text)
    ufrag, pwd = _credentials(document)
    session = document.session
    options = session.first("ice-options")
    return Fragment(
        ufrag=ufrag,
        pwd=pwd,
        sections=tuple(
            FragmentSection(
                mid=checked_mid(mid),
                candidates=tuple(line.argument for line in level.own("candidate")),
                end_of_candidates=bool(level.own("end-of-candidates")),
                media=media.line.value,
            )
            for media, level in document.sections
            if (mid := next(iter(level.own("mid")), None)) is not None
        ),
        bundle=next(iter(bundle_groups(session)), ()),
        end_of_candidates=bool(session.own("end-of-candidates")),
        ice_lite=bool(session.own("ice-lite")),
        ice_options=tuple(options.argument.split()) if options else (),
    )


def build_fragment(fragment: Fragment) -> str:
    """Write a fragment with CRLF lines; parse_fragment reads the same value back.

    Credentials go into each section, where RFC 9725 §4.3.3 shows them, and to the session level if there is no section.
    """
    credentials = [] if fragment.ufrag is None else [f"a=ice-ufrag:{fragment.ufrag}", f"a=ice-pwd:{fragment.pwd}"]
    lines = ["a=ice-lite"] if fragment.ice_lite else []
    if fragment.ice_options:
        lines.append(f"a=ice-options:{' '.join(fragment.ice_options)}")
    if fragment.bundle:
        lines.append(f"a=group:BUNDLE {' '.join(fragment.bundle)}")
    if not fragment.sections:
        lines += credentials
    if fragment.end_of_candidates:
        lines.append("a=end-of-candidates")
    for section in fragment.sections:
        lines += [f"m={section.media}", f"a=mid:{section.mid}", *credentials]
        lines += [f"a=candidate:{candidate}" for candidate in section.candidates]
        if section.end_of_candidates:
            lines.append("a=end-of-candidates")
    return "".join(f"{line}\r\n" for line in lines)


def _credentials(document: Document) -> tuple[str, str] | tuple[None, None]:
    """The first ufrag and the password of the same level."""
    levels: list[Level] = [document.session, *(level for _, level in document.sections)]
    for level in levels:
        ufrag = next(iter(level.own("ice-ufrag")), None)
        pwd = next(iter(level.own("ice-pwd")), None)
        if ufrag is None and pwd is None:
            continue
        if ufrag is None or pwd is None:
            line = ufrag or pwd
            assert line is not None
            raise line.error("expected a=ice-ufrag and a=ice-pwd together")
        return checked_ufrag(ufrag), checked_pwd(pwd)
    return None, None
