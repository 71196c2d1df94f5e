# SPDX-License-Identifier: Apache-2.0
"""CAs and certificates for tests."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


@dataclass(frozen=True)
class Pair:
    name: str
    key: ec.EllipticCurvePrivateKey
    pem: bytes = b""

    @property
    def fingerprint(self) -> str:
        return x509.load_pem_x509_certificate(self.pem).fingerprint(hashes.SHA256()).hex()

    def signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, days: int, *extensions: x509.ExtensionType
    ) -> Pair:
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, self.name)
        )
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=days))
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints)
            builder = builder.add_extension(extension, critical)
        made = builder.sign(self.key, hashes.SHA256())
        return Pair(name, key, made.public_bytes(serialization.Encoding.PEM))

    def write(self, directory: Path, name: str, chain: bytes = b"") -> None:
        """Write both as files, other certificates behind the own one."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.crt").write_bytes(self.pem + chain)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key = self.key.private_bytes(encoding, form, serialization.NoEncryption())
        (directory / f"{name}.key").write_bytes(key)


def authority(
    name: str, by: Pair | None = None, key: ec.EllipticCurvePrivateKey | None = None, *, key_ids: bool = True
) -> Pair:
    """A CA, of itself or of another, with a key of its own unless one is given. As K3s', for ten years."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    issuer = by or Pair(name, key)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    extensions: list[x509.ExtensionType] = [constraints]
    if key_ids:
        extensions.append(x509.SubjectKeyIdentifier.from_public_key(key.public_key()))
        extensions.append(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()))
    return issuer.signed(name, key, 3650, *extensions)


def certificate(name: str, by: Pair, days: int = 365) -> Pair:
    local = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    by_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
    return by.signed(name, ec.generate_private_key(ec.SECP256R1()), days, local, by_key)


def split(bundle: bytes) -> list[bytes]:
    return PEM.findall(bundle)
