"""A certificate for servers of this machine, and the root that has signed it."""

import ssl
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a root for tests")])


def certified(folder: Path, *, begins_in: int = -1) -> tuple[ssl.SSLContext, bytes]:
    """Make what a server at 127.0.0.1 needs, and the root that its clients have to trust.

    The server's certificate is valid for two days. It begins in some days.
    """
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = _signed(ROOT, root_key, root_key, x509.BasicConstraints(ca=True, path_length=None))
    name = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    (folder / "server.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + _signed(x509.Name([]), key, root_key, name, begins_in)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, root


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    root_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
    begins_in: int = -1,
) -> bytes:
    begin = datetime.now(timezone.utc) + timedelta(days=begins_in)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ROOT)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2))
        .add_extension(extension, critical=True)
        .sign(root_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
