# SPDX-License-Identifier: Apache-2.0
"""Certificate authorities and certificates, made with the openssl command: Python's library makes none.

A certificate is stamped with what it was issued for. The stamp is written last, so a file that a kill left
half made is made anew, and a certificate is kept over restarts for as long as it says what is wanted and does
not end soon.
"""

import ipaddress
import json
import os
import re
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import files
from .errors import StandinError

# As in K3s: an authority is valid for ten years, what it signs for one, or for as many days as this says
# (rancher/dynamiclistener, cert/cert.go).
AUTHORITY_DAYS = "3650"
DAYS, DAYS_VARIABLE = 365, "CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS"
# At its start K3s renews what ends within so many days (pkg/daemons/config/types.go, until May 2025).
RENEWED_WITHIN_SECONDS = 90 * 86400
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Subject:
    """Whom a certificate is for: common name, group, names it serves under (none: a client's).

    `peer`: it serves and is a client, too.
    """

    name: str
    group: str = ""
    hosts: tuple[str, ...] = ()
    peer: bool = False

    @property
    def text(self) -> str:
        """The subject in openssl's notation."""
        return (f"/O={self.group}" if self.group else "") + f"/CN={self.name}"

    @property
    def extensions(self) -> str:
        """The X.509 v3 extensions in openssl's notation."""
        usage = "serverAuth,clientAuth" if self.peer else "serverAuth" if self.hosts else "clientAuth"
        lines = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature,keyEncipherment",
            f"extendedKeyUsage={usage}",
        ]
        if self.hosts:
            lines.append(f"subjectAltName={','.join(alternative_name(host) for host in self.hosts)}")
        return "\n".join(lines) + "\n"


def alternative_name(host: str) -> str:
    """Return a host name or address as openssl writes it in a subjectAltName."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def openssl(*arguments: str | Path) -> bytes:
    """Run openssl and return what it writes. Raises StandinError with its complaint."""
    try:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise StandinError("the openssl command is missing; install the package openssl") from error
    if done.returncode != 0:
        raise StandinError(f"openssl {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def authority(directory: Path, name: str) -> Pair:
    """Return the certificate authority `name`, made when absent."""
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    if not pair.cert.exists():
        with tempfile.TemporaryDirectory() as scratch:
            key, cert = Path(scratch, "key"), Path(scratch, "crt")
            openssl(
                "req", "-x509", *NEW_KEY, "-keyout", key, "-out", cert, "-days", AUTHORITY_DAYS,
                "-subj", f"/CN=k3s-{name}@{int(time.time())}",
                "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            )  # fmt: skip
            # The key first: a certificate that exists has its key beside it.
            files.write(pair.key, key.read_bytes())
            files.write(pair.cert, cert.read_bytes(), 0o644)
    return pair


def valid_days() -> int:
    """Return for how many days a new certificate is valid; a value that is no number is passed over."""
    try:
        return int(os.environ.get(DAYS_VARIABLE, ""))
    except ValueError:
        return DAYS


def ends_soon(cert: Path) -> bool:
    """Say whether K3s would renew a certificate at its start."""
    ends = ("openssl", "x509", "-noout", "-checkend", str(RENEWED_WITHIN_SECONDS), "-in", str(cert))
    return subprocess.run(ends, capture_output=True, check=False).returncode != 0


def split(bundle: bytes) -> list[bytes]:
    """Return the certificates of a bundle, each as PEM."""
    return PEM.findall(bundle)


def leads_to(certificate: bytes, roots: bytes, between: bytes) -> bool:
    """Say whether a certificate leads to one of the roots, by others that are between."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch, name) for name in ("roots", "between", "certificate")]
        for path, pem in zip(paths, (roots, between, certificate), strict=True):
            path.write_bytes(pem)
        argv = ["openssl", "verify", "-CAfile", str(paths[0]), "-untrusted", str(paths[1]), str(paths[2])]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def issue(ca: Pair, subject: Subject) -> tuple[bytes, bytes]:
    """Return a fresh certificate with those of its authority behind it, and its private key, all PEM."""
    with tempfile.TemporaryDirectory() as scratch:
        key, request, extensions = (Path(scratch, name) for name in ("key", "csr", "ext"))
        extensions.write_text(subject.extensions)
        openssl("req", "-new", *NEW_KEY, "-keyout", key, "-out", request, "-subj", subject.text)
        cert = openssl(
            "x509", "-req", "-in", request, "-CA", ca.cert, "-CAkey", ca.key, "-days", str(valid_days()),
            "-set_serial", f"0x{secrets.token_hex(16)}", "-extfile", extensions,
        )  # fmt: skip
        return cert + ca.cert.read_bytes(), key.read_bytes()


def certificate(directory: Path, name: str, ca: Pair, subject: Subject) -> Pair:
    """Return the certificate `name`, issued when absent, for something else before, or when it ends soon."""
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    stamp = directory / f"{name}.json"
    wanted = json.dumps([subject.text, subject.extensions, ca.cert.read_text()])
    if not (stamp.is_file() and stamp.read_text() == wanted) or ends_soon(pair.cert):
        stamp.unlink(missing_ok=True)
        cert, key = issue(ca, subject)
        files.write(pair.key, key)
        files.write(pair.cert, cert, 0o644)
        files.write(stamp, wanted)
    return pair


def signing_key(path: Path) -> Path:
    """Return the key that signs service account tokens, made when absent; the API server wants SEC 1."""
    if not path.exists():
        files.write(path, openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout"))
    return path


def distinct(*names: str) -> tuple[str, ...]:
    """Return names and addresses in order, without the empty and the repeated ones."""
    return tuple(dict.fromkeys(name for name in names if name))
