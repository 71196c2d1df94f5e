# SPDX-License-Identifier: Apache-2.0
"""CAs and certificates for tests, made with the openssl command."""

from __future__ import annotations

import ipaddress
import re
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
CA_DAYS = 3650  # as K3s


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM files."""

    cert: Path
    key: Path


def openssl(*arguments: str | Path) -> bytes:
    """Run openssl and return what it writes."""
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True).stdout


def authority(directory: Path, name: str) -> Pair:
    """Make a CA, named as K3s names its own."""
    pair = _pair(directory, name)
    openssl(
        "req", "-x509", *NEW_KEY, "-keyout", pair.key, "-out", pair.cert, "-days", str(CA_DAYS),
        "-subj", f"/CN=k3s-{name}@{int(time.time())}",
        "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
    )  # fmt: skip
    return pair


def certificate(directory: Path, name: str, ca: Pair, *hosts: str, days: int = 365) -> Pair:
    """Make a certificate with its CA's behind it: of a server under `hosts`, without them a client's."""
    pair = _pair(directory, name)
    extensions = f"extendedKeyUsage={'serverAuth' if hosts else 'clientAuth'}\n"
    if hosts:
        extensions += f"subjectAltName={','.join(map(_alternative_name, hosts))}\n"
    with tempfile.TemporaryDirectory() as scratch:
        request, described = Path(scratch, "csr"), Path(scratch, "extensions")
        described.write_text(extensions)
        openssl("req", "-new", *NEW_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        signed = openssl(
            "x509", "-req", "-in", request, "-CA", ca.cert, "-CAkey", ca.key, "-days", str(days),
            "-set_serial", f"0x{secrets.token_hex(16)}", "-extfile", described,
        )  # fmt: skip
    pair.cert.write_bytes(signed + ca.cert.read_bytes())
    return pair


def split(bundle: bytes) -> list[bytes]:
    """Return the certificates of a bundle, each as PEM."""
    return PEM.findall(bundle)


def leads_to(certificate: bytes, roots: bytes, between: bytes) -> bool:
    """Say whether a certificate leads to one of the roots, by others that are between."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch, name) for name in ("roots", "between", "certificate")]
        for path, pem in zip(paths, (roots, between, certificate), strict=True):
            path.write_bytes(pem)
        command: list[str | Path] = [
            "openssl",
            "verify",
            "-CAfile",
            paths[0],
            "-untrusted",
            paths[1],
            paths[2],
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _pair(directory: Path, name: str) -> Pair:
    directory.mkdir(parents=True, exist_ok=True)
    return Pair(directory / f"{name}.crt", directory / f"{name}.key")


def _alternative_name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"
