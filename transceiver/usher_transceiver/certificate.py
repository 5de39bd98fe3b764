"""The certificate of this process and the OpenSSL context made of it: one for all calls (RFC 8827 section 6.5).

A context costs 0.23 ms and a certificate 0.09 ms; a call shall pay for neither.
"""

from __future__ import annotations

import datetime as dt
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from usher_transceiver.srtp import PROFILES

_LIFE = dt.timedelta(days=365)
_CLOCK_SKEW = dt.timedelta(days=1)
_DTLS_1_2 = 0xFEFD

# ECDSA suites for our own P-256 certificate; RSA suites for when we are the DTLS client of a device whose certificate
# is RSA (GStreamer 1.22, ESP32). SECLEVEL=0: small devices come with RSA 1024, and the fingerprint in the offer is what
# identifies the client (RFC 8122 section 5), not the strength of a certificate that it made itself.
_CIPHERS = b":".join(
    (
        b"ECDHE-ECDSA-AES128-GCM-SHA256",
        b"ECDHE-ECDSA-CHACHA20-POLY1305",
        b"ECDHE-RSA-AES128-GCM-SHA256",
        b"ECDHE-RSA-CHACHA20-POLY1305",
        b"ECDHE-ECDSA-AES256-GCM-SHA384",
        b"ECDHE-RSA-AES256-GCM-SHA384",
        b"ECDHE-ECDSA-AES128-SHA",
        b"ECDHE-RSA-AES128-SHA",
        b"@SECLEVEL=0",
    )
)


class Certificate:
    """A P-256 certificate (libdatachannel takes nothing else) with its context and fingerprint."""

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, secrets.token_hex(16))])
        now = dt.datetime.now(tz=dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFE)
            .sign(key, hashes.SHA256())
        )
        self.fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
        """SHA-256, upper case hex with colons, as SDP wants it (RFC 8122 section 5)."""
        self.context = _make_context(certificate, key)


def _make_context(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> SSL.Context:
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_min_proto_version(_DTLS_1_2)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_QUERY_MTU | SSL.OP_NO_RENEGOTIATION)
    # The chain proves nothing here; the fingerprint is compared after the handshake (RFC 5763 section 5).
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_cipher_list(_CIPHERS)
    context.set_tlsext_use_srtp(b":".join(profile.name for profile in PROFILES))
    return context
