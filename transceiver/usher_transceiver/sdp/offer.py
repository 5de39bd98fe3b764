"""Read an SDP offer and decide what of it is accepted (RFC 8829 §5.10, RFC 9143 §7.3).

Rules:
* The first audio section that is on and has a codec of ours is the call. Without one there is no call: an
  offer with only a data channel is refused, because a page that forgot its microphone would
  otherwise get a call that hears nothing, and no word why.
* The first data channel section on the same transport carries events. All other sections are
  rejected, whatever they are, and never fail the call.
* A call has one transport. Sections are on it when the BUNDLE group of the audio section holds
  them. Where no group holds the audio section, sections with its ICE credentials are: small
  devices send everything over one transport without saying so.
"""

from usher_core.errors import RemoteError
from usher_core.sdplines import bundle_groups, read_document
from usher_transceiver.sdp.model import AudioSection, DataSection, Offer, Section
from usher_transceiver.sdp.sections import OfferedSection, read_audio, read_data, read_sections, reject
from usher_transceiver.sdp.transport import choose_transport_section, read_transport


def parse_offer(text: str | bytes) -> Offer:
    """Read an SDP offer of at most 64 KiB.

    Raises RemoteError with the reason `bad_sdp`. Its text names the line by number and content,
    and is fit for the client's eyes.
    """
    document = read_document(text)
    if document.first is None:
        raise RemoteError("bad_sdp", "SDP is empty")
    if document.first.kind == "v" and document.first.value.startswith("0o="):
        raise document.first.error("expected line ends, but they are missing: curl keeps them with --data-binary only")
    if (document.first.kind, document.first.value) != ("v", "0"):
        raise document.first.error("expected v=0, the start of an SDP offer")
    if lite := document.session.first("ice-lite"):
        # Design D18. RFC 8445 §6.1.1: one of the two has to be a full agent and send checks.
        raise lite.error("expected a full ICE agent, since this server is ice-lite itself")

    sections = read_sections(document)
    audio_at, audio = _first_audio(sections)
    group = next((mids for mids in bundle_groups(document.session) if audio.mid in mids), ())
    data_at, data = _first_data(sections, sections[audio_at], group)

    accepted: dict[int, Section] = {audio_at: audio}
    if data is not None:
        accepted[data_at] = data
    ordered = _in_group_order(sections, group)
    transport = read_transport(
        choose_transport_section(
            accepted=[sections[i] for i in ordered if i in accepted],
            others=[sections[i] for i in ordered if i not in accepted and sections[i].mid in group],
        )
    )
    return Offer(
        ufrag=transport.ufrag,
        pwd=transport.pwd,
        fingerprints=transport.fingerprints,
        role=transport.role,
        audio=audio,
        data=data,
        sections=tuple(accepted.get(i) or reject(section) for i, section in enumerate(sections)),
        bundle=tuple(sections[i].mid or "" for i in ordered if i in accepted) if group else (),
    )


def _first_audio(sections: list[OfferedSection]) -> tuple[int, AudioSection]:
    """Index and content of the first audio section that can be served, else why the first one cannot be."""
    refusal: RemoteError | None = None
    for index, section in enumerate(sections):
        if section.media.media != "audio":
            continue
        try:
            return index, read_audio(section)
        except RemoteError as error:
            refusal = refusal or error
    raise refusal or RemoteError(
        "bad_sdp",
        "SDP has no m=audio section: add a microphone track or an audio transceiver before createOffer",
    )


def _first_data(
    sections: list[OfferedSection], audio: OfferedSection, group: tuple[str, ...]
) -> tuple[int, DataSection | None]:
    """Index and content of the first data channel section on the transport of the audio section."""
    for index, section in enumerate(sections):
        on_transport = section.mid in group if group else _credentials(section) == _credentials(audio)
        if on_transport and (data := read_data(section)):
            return index, data
    return -1, None


def _credentials(section: OfferedSection) -> list[str]:
    lines = (section.level.first(name) for name in ("ice-ufrag", "ice-pwd"))
    return [line.argument for line in lines if line]


def _in_group_order(sections: list[OfferedSection], group: tuple[str, ...]) -> list[int]:
    """Indices of all sections, those of the group first and as it lists them (RFC 9143 §7.2: the first is tagged)."""
    rank = {mid: position for position, mid in reversed(list(enumerate(group)))}
    return sorted(range(len(sections)), key=lambda i: (rank.get(sections[i].mid or "", len(group)), i))
