"""Opus through the system's libopus, without a compiler (cffi's ABI mode)."""

from ctypes.util import find_library
from typing import Any, Final

import cffi

from usher_core.errors import LocalError, RemoteError
from usher_transceiver.media.codec import MAX_PACKET, EncoderSettings
from usher_transceiver.media.frame import FRAME_SAMPLES, SAMPLE_RATE

_NAMES: Final = ("libopus.so.0", "libopus.so", "libopus.0.dylib", "/opt/homebrew/lib/libopus.0.dylib")
_MAX_SAMPLES: Final = SAMPLE_RATE * 120 // 1000

# From opus_defines.h; the numbers are part of libopus' stable ABI.
_OK: Final = 0
_APPLICATION: Final = {"voip": 2048, "audio": 2049}
_SET_BITRATE: Final = 4002
_SET_MAX_BANDWIDTH: Final = 4004
_SET_COMPLEXITY: Final = 4010
_SET_INBAND_FEC: Final = 4012
_SET_PACKET_LOSS_PERC: Final = 4014
_BANDWIDTH_WIDEBAND: Final = 1103

_FEC_FROM_PERCENT: Final = 10
_FEC_COMPLEXITY: Final = 2

_DECLARATIONS: Final = """
typedef struct OpusEncoder OpusEncoder;
typedef struct OpusDecoder OpusDecoder;
OpusEncoder *opus_encoder_create(int32_t rate, int channels, int application, int *error);
void opus_encoder_destroy(OpusEncoder *encoder);
int opus_encoder_ctl(OpusEncoder *encoder, int request, ...);
int32_t opus_encode(OpusEncoder *encoder, const int16_t *pcm, int samples, unsigned char *data, int32_t capacity);
OpusDecoder *opus_decoder_create(int32_t rate, int channels, int *error);
void opus_decoder_destroy(OpusDecoder *decoder);
int opus_decode(OpusDecoder *decoder, const unsigned char *data, int32_t length, int16_t *pcm, int samples, int fec);
const char *opus_strerror(int error);
const char *opus_get_version_string(void);
"""


class LibOpus:
    """The codec made of the system's libopus. Raises LocalError when there is none."""

    def __init__(self) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._library = self._open()
        version: Any = self._ffi.string(self._library.opus_get_version_string())
        self.name = version.decode("ascii", "replace")

    def _open(self) -> Any:
        for name in _NAMES:
            try:
                return self._ffi.dlopen(name)
            except OSError:
                continue
        # Last, because it starts other programs to search.
        found = find_library("opus")
        if found is None:
            raise LocalError("libopus was not found", "install it (Debian: libopus0; Fedora, Alpine, Homebrew: opus)")
        return self._ffi.dlopen(found)

    def encoder(self, settings: EncoderSettings) -> "LibOpusEncoder":
        return LibOpusEncoder(self._ffi, self._library, settings)

    def decoder(self) -> "LibOpusDecoder":
        return LibOpusDecoder(self._ffi, self._library)


class LibOpusEncoder:
    """See `codec.Encoder`."""

    def __init__(self, ffi: cffi.FFI, library: Any, settings: EncoderSettings) -> None:
        self._ffi = ffi
        self._library = library
        error: Any = ffi.new("int *")
        state = library.opus_encoder_create(SAMPLE_RATE, 1, _APPLICATION[settings.application], error)
        if error[0] != _OK:
            raise LocalError(f"libopus refused to make an encoder: {_text(ffi, library, error[0])}")
        self._state: Any = ffi.gc(state, library.opus_encoder_destroy)
        self._packet: Any = ffi.new("unsigned char[]", MAX_PACKET)
        self._complexity = settings.complexity
        self._set(_SET_BITRATE, settings.bitrate)
        self._set(_SET_COMPLEXITY, settings.complexity)
        if settings.wideband:
            self._set(_SET_MAX_BANDWIDTH, _BANDWIDTH_WIDEBAND)

    def _set(self, request: int, value: int) -> None:
        status = self._library.opus_encoder_ctl(self._state, request, self._ffi.cast("int32_t", value))
        if status != _OK:
            raise LocalError(f"libopus refused setting {request} = {value}: {_text(self._ffi, self._library, status)}")

    def encode(self, pcm: bytes) -> bytes:
        samples = self._ffi.from_buffer("int16_t[]", pcm)
        length = self._library.opus_encode(self._state, samples, FRAME_SAMPLES, self._packet, MAX_PACKET)
        if length < 0:
            raise LocalError(f"libopus could not encode: {_text(self._ffi, self._library, length)}")
        return bytes(self._ffi.buffer(self._packet, length))

    def expect_loss(self, percent: int) -> None:
        # Redundancy exists in SILK only, to which libopus turns from 10 % on; it costs several times as much as CELT.
        redundant = percent >= _FEC_FROM_PERCENT
        self._set(_SET_INBAND_FEC, int(redundant))
        self._set(_SET_PACKET_LOSS_PERC, percent if redundant else 0)
        self._set(_SET_COMPLEXITY, min(self._complexity, _FEC_COMPLEXITY) if redundant else self._complexity)


class LibOpusDecoder:
    """See `codec.Decoder`."""

    def __init__(self, ffi: cffi.FFI, library: Any) -> None:
        self._ffi = ffi
        self._library = library
        error: Any = ffi.new("int *")
        state = library.opus_decoder_create(SAMPLE_RATE, 1, error)
        if error[0] != _OK:
            raise LocalError(f"libopus refused to make a decoder: {_text(ffi, library, error[0])}")
        self._state: Any = ffi.gc(state, library.opus_decoder_destroy)
        self._pcm: Any = ffi.new("int16_t[]", _MAX_SAMPLES)

    def decode(self, packet: bytes) -> bytes:
        return self._decode(self._ffi.from_buffer(packet), len(packet), _MAX_SAMPLES, fec=0)

    def recover(self, following: bytes, samples: int) -> bytes:
        return self._decode(self._ffi.from_buffer(following), len(following), samples, fec=1)

    def conceal(self, samples: int) -> bytes:
        return self._decode(self._ffi.NULL, 0, samples, fec=0)

    def _decode(self, data: Any, length: int, samples: int, *, fec: int) -> bytes:
        count = self._library.opus_decode(self._state, data, length, self._pcm, samples, fec)
        if count < 0:
            raise RemoteError("opus_packet", f"libopus could not decode: {_text(self._ffi, self._library, count)}")
        return bytes(self._ffi.buffer(self._pcm, 2 * count))


def _text(ffi: cffi.FFI, library: Any, status: int) -> str:
    text: Any = ffi.string(library.opus_strerror(status))
    return str(text.decode("ascii", "replace"))
