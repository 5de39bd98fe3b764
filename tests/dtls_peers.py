"""DTLS peers that are not ours."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from OpenSSL import SSL

ALL_PROFILES = b"SRTP_AES128_CM_SHA1_80:SRTP_AEAD_AES_256_GCM:SRTP_AEAD_AES_128_GCM"


def make_context(
    key: Literal["p256", "rsa"] = "p256",
    bits: int = 2048,
    profiles: bytes = ALL_PROFILES,
    padding: int = 0,
) -> tuple[SSL.Context, str]:
    """A DTLS context as a client has one, and the SHA-256 fingerprint of its certificate.

    GStreamer has an RSA certificate of 2048 bits and SHA1_80 only, small devices RSA 1024. `padding` makes the
    ClientHello
    that much longer, as post-quantum key shares do in browsers.
    """
    private = rsa.generate_private_key(65537, bits) if key == "rsa" else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "device")])
    now = dt.datetime.now(tz=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .sign(private, hashes.SHA256())
    )
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_options(SSL.OP_NO_QUERY_MTU)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
    context.use_certificate(certificate)
    context.use_privatekey(private)
    context.set_tlsext_use_srtp(profiles)
    if padding:
        context.set_alpn_protos([b"x" * 250] * (padding // 250) + [b"webrtc"])
    return context, certificate.fingerprint(hashes.SHA256()).hex(":").upper()
