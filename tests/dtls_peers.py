"""DTLS peers that are not ours."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL


def rsa_certificate(bits: int) -> tuple[SSL.Context, str]:
    """A context with an RSA certificate, as GStreamer and ESP32 devices have, and its SHA-256 fingerprint."""
    key = rsa.generate_private_key(65537, bits)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "device")])
    now = dt.datetime.now(tz=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_tlsext_use_srtp(b"SRTP_AES128_CM_SHA1_80")
    return context, certificate.fingerprint(hashes.SHA256()).hex(":").upper()
