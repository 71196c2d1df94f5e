# SPDX-License-Identifier: Apache-2.0
"""The CAs that `k3s certificate rotate-ca` brings: checked as K3s does it, and used from the next start on.

K3s keeps them in its data store. Here they wait in a file beside it.
"""

import base64
import json
import tempfile
from pathlib import Path

from . import certs, files
from .errors import StandinError

# K3s' keys (pkg/daemons/config/types.go, ControlRuntimeBootstrap), and the files below server/tls.
FILES = {
    "ServerCA": "server-ca.crt",
    "ServerCAKey": "server-ca.key",
    "ClientCA": "client-ca.crt",
    "ClientCAKey": "client-ca.key",
    "ETCDServerCA": "etcd/server-ca.crt",
    "ETCDServerCAKey": "etcd/server-ca.key",
    "ETCDPeerCA": "etcd/peer-ca.crt",
    "ETCDPeerCAKey": "etcd/peer-ca.key",
    "ServiceKey": "service.key",
}
# Files of authorities, without their ending; a server without etcd has two.
AUTHORITIES = ("server-ca", "client-ca", "etcd/server-ca", "etcd/peer-ca")


def waiting(tls: Path) -> Path:
    """Return the file in which they wait."""
    return tls.parent / "db" / "bootstrap.json"


def save(tls: Path, body: bytes, force: bool) -> None:
    """Keep what is asked for until the next start. Raises StandinError for what would not work."""
    try:
        asked = {FILES[field]: base64.b64decode(file["Content"]) for field, file in json.loads(body).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StandinError(f"not a request for other CAs: {error!r}") from error
    there = [name for name in FILES.values() if (tls / name).exists()]
    new = {name: asked.get(name) or (tls / name).read_bytes() for name in there}
    if not force:
        for name in AUTHORITIES:
            if f"{name}.crt" in asked:
                check(name, (tls / f"{name}.crt").read_bytes(), new[f"{name}.crt"], new[f"{name}.key"])
        if (tls / "service.key").read_bytes() not in new["service.key"]:
            raise StandinError("old ServiceAccount signing key not in new ServiceAccount key list")
    files.write(waiting(tls), json.dumps({name: content.decode() for name, content in new.items()}))


def check(name: str, old: bytes, new: bytes, key: bytes) -> None:
    """Refuse a CA that those who trust the old one do not trust, or whose key is another one."""
    found = certs.split(new)
    if len(found) < 2:
        raise StandinError(
            f"{name}: new CA bundle contains only a single certificate but should include root or "
            "intermediate CA certificates"
        )
    # OpenSSL would end at a new root; K3s passes it over.
    between = b"".join(one for one in found if not certs.leads_to(one, one, one))
    if not certs.leads_to(found[0], old, between):
        raise StandinError(f"{name}: new CA cert cannot be verified using old CA chain")
    with tempfile.TemporaryDirectory() as scratch:
        cert_file, key_file = Path(scratch, "crt"), Path(scratch, "key")
        cert_file.write_bytes(found[0])
        key_file.write_bytes(key)
        public = certs.openssl("x509", "-noout", "-pubkey", "-in", cert_file)
        if certs.openssl("pkey", "-pubout", "-in", key_file) != public:
            raise StandinError(f"{name}: new CA cert and key cannot be loaded as X590KeyPair")


def load(tls: Path) -> None:
    """Use what waits. A start that was cut off is gone on with by the next one."""
    if waiting(tls).exists():
        for name, content in json.loads(waiting(tls).read_text()).items():
            files.write(tls / name, content, 0o600 if name.endswith(".key") else 0o644)
        waiting(tls).unlink()
