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

    def signed(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        days: int,
        *extensions: x509.ExtensionType,
        organization: str = "",
    ) -> Pair:
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text), *of])
            for text, of in (
                (name, [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] * bool(organization)),
                (self.name, []),
            )
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


def authority(name: str) -> Pair:
    """A CA as K3s makes it, for ten years."""
    own = Pair(name, ec.generate_private_key(ec.SECP256R1()))
    public = own.key.public_key()
    return own.signed(
        name,
        own.key,
        3650,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public),
    )


def certificate(name: str, by: Pair, days: int = 365, organization: str = "") -> Pair:
    local = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    by_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
    return by.signed(
        name, ec.generate_private_key(ec.SECP256R1()), days, local, by_key, organization=organization
    )


def split(bundle: bytes) -> list[bytes]:
    return PEM.findall(bundle)
