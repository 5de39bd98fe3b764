"""Bodies of requests: read within bounds, and the three forms an offer comes in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from usher_core.internal_api import MAX_SDP, MAX_SESSION_JSON
from usher_core.json_values import is_deeper
from usher_signaling.errors import ApiError, unsupported_media_type
from usher_signaling.header_values import sendable

SDP = "application/sdp"
FRAGMENT = "application/trickle-ice-sdpfrag"
MULTIPART = "multipart/form-data"
JSON = "application/json"
MAX_OFFER_BODY = 2 * (MAX_SDP + MAX_SESSION_JSON)
"""JSON escapes may double a text; the parts have their own limits."""
MAX_DEPTH = 64
MAX_CONTENT_TYPE = 1024

# What stands between quotes as it is; boundaries have 70 characters at most (RFC 2046 section 5.1.1).
_PARAMETER = re.compile(r"[ !#-\[\]-~]{0,255}[!#-\[\]-~]")


@dataclass(frozen=True, slots=True)
class OfferRequest:
    """An offer, and the session configuration that came with it."""

    sdp: str
    session: dict[str, Any] = field(default_factory=dict)


def media_type(headers: Headers) -> str:
    """The media type of the body, in lower case and without parameters."""
    return media_type_of(headers.get("content-type", ""))


def media_type_of(content_type: str) -> str:
    """The same of the header's value."""
    return content_type.partition(";")[0].strip().lower()


def content_type_for_another(headers: Headers) -> str | None:
    """The Content-Type as another region is to read it: what counts here and nothing else. None for one that is none.

    Of the parameters those of a form count; a form with a boundary that can't be sent on is one of nobody.
    """
    kind = media_type(headers)
    if kind == MULTIPART:
        _, found = parse_options_header(headers["content-type"])
        kept = [(name, found.get(name.encode(), b"").decode("latin-1")) for name in ("boundary", "charset")]
        kind = "; ".join([kind, *(f'{name}="{value}"' for name, value in kept if _PARAMETER.fullmatch(value))])
    return sendable(kind, MAX_CONTENT_TYPE)


async def read_body(request: Request, limit: int, deadline: float) -> bytes:
    """Read a body of at most `limit` bytes within `deadline` seconds. Raises ApiError 413, 408 or 400."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(deadline):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise ApiError(
            408, "body_too_slow", f"The body did not arrive within {deadline:g} s.", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "body_incomplete", "The connection ended within the body.") from None
    return bytes(body)


async def parse_offer_request(headers: Headers, body: bytes) -> OfferRequest:
    """Read an offer from plain SDP, from a form, or from JSON as the `openai` Python package sends it.

    Raises ApiError 400, 413 or 415.
    """
    kind = media_type(headers)
    if kind == SDP:
        return OfferRequest(decode_sdp(body))
    if kind == MULTIPART:
        return await _parse_form(headers, body)
    if kind == JSON:
        return _parse_json(body)
    raise unsupported_media_type(f"{SDP}, {MULTIPART} (parts sdp and session) or {JSON}", {"Accept-Post": SDP})


def decode_sdp(body: bytes | str, param: str | None = None) -> str:
    """The text of an SDP body. Raises ApiError 400 when it is none, 413 over 64 KiB."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if len(raw) > MAX_SDP:
        raise _too_large(MAX_SDP, param)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ApiError(400, "bad_sdp", "The SDP is not in UTF-8.", param=param) from None
    if not text.strip():
        raise ApiError(400, "bad_sdp", "The SDP is empty: the offer is expected here.", param=param)
    return text


def parse_object(text: str | bytes, param: str | None = None) -> dict[str, Any]:
    """Parse a JSON object that can be written again. Raises ApiError 400."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ApiError(400, "bad_json", f"{param or 'The body'} is no JSON.", param=param) from None
    return _checked_object(value, param)


def parse_session(value: Any) -> dict[str, Any]:
    """Check a `session` out of a JSON body; None is an empty one. Raises ApiError 400 or 413."""
    session = _checked_object({} if value is None else value, "session")
    if len(json.dumps(session)) > MAX_SESSION_JSON:
        raise _too_large(MAX_SESSION_JSON, "session")
    return session


async def _parse_form(headers: Headers, body: bytes) -> OfferRequest:
    async def stream() -> AsyncIterator[bytes]:
        yield body

    boundary = parse_options_header(headers["content-type"])[1].get(b"boundary", b"").decode("latin-1")
    if not _PARAMETER.fullmatch(boundary):
        raise ApiError(400, "bad_form", "The form can't be read: its boundary is missing, or none.")
    parser = MultiPartParser(headers, stream(), max_files=4, max_fields=16, max_part_size=MAX_OFFER_BODY)  # type: ignore[arg-type]
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, "bad_form", f"The form can't be read: {error.message}") from None
    try:
        # A part with a file name arrives as a file, one without as text: clients send either.
        parts = {name: await part.read() if isinstance(part, UploadFile) else part for name, part in form.multi_items()}
    finally:
        await form.close()
    if "sdp" not in parts:
        raise ApiError(400, "missing_sdp", "The form has no part named sdp.", param="sdp")
    session = parse_object(parts["session"], "session") if parts.get("session") else None
    return OfferRequest(decode_sdp(parts["sdp"], "sdp"), parse_session(session))


def _parse_json(body: bytes) -> OfferRequest:
    content = parse_object(body)
    sdp = content.get("sdp")
    if not isinstance(sdp, str):
        raise ApiError(400, "missing_sdp", "The JSON object has no text named sdp.", param="sdp")
    return OfferRequest(decode_sdp(sdp, "sdp"), parse_session(content.get("session")))


def _checked_object(value: Any, param: str | None) -> dict[str, Any]:
    what = param or "The body"
    if not isinstance(value, dict):
        raise ApiError(400, "bad_json", f"{what} is expected to be a JSON object.", param=param)
    if is_deeper(value, MAX_DEPTH):
        raise ApiError(400, "bad_json", f"{what} is nested deeper than {MAX_DEPTH}.", param=param)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # NaN, Infinity (RFC 8259 section 6), or half a surrogate pair (section 8.2)
        raise ApiError(400, "bad_json", f"{what} has a number or text that JSON can't carry.", param=param) from None
    return value


def _too_large(limit: int, param: str | None = None) -> ApiError:
    # The rest of the body will not be read, so the connection can't carry another request.
    headers = {"Connection": "close"}
    return ApiError(413, "body_too_large", f"At most {limit} bytes are read here.", param=param, headers=headers)
