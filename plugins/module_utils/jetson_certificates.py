# SPDX-License-Identifier: Apache-2.0
"""K3s' certificates on a board: their names, expiration dates, and the start of K3s.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64
import glob
import hashlib
import json
import os
import ssl
import tempfile
import time
from typing import Any, Dict, List, Optional

DATA_DIRECTORY = "/var/lib/rancher/k3s"
# Certificates that K3s renews when it starts (its pkg/util/services). Older releases had other names, too.
RENEWED = {
    "server/tls": (
        "client-admin",
        "client-auth-proxy",
        "client-controller",
        "client-k3s-cloud-controller",
        "client-k3s-controller",
        "client-kube-apiserver",
        "client-kube-proxy",
        "client-scheduler",
        "client-supervisor",
        "serving-kube-apiserver",
    ),
    "server/tls/etcd": ("client", "peer-server-client", "server-client"),
    "agent": ("client-k3s-controller", "client-kube-proxy", "client-kubelet", "serving-kubelet"),
}
# The certificate of port 6443. K3s keeps it as a Secret's JSON and renews it while it runs (dynamiclistener).
LISTENER = "server/tls/dynamic-cert.json"
# Days that a new one is valid for, and the variable that says otherwise (dynamiclistener, cert/cert.go).
VALID_DAYS = 365
VALID_DAYS_VARIABLE = "CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS"


def end(path: str) -> Optional[int]:
    """When the first certificate of a PEM file expires, in seconds since 1970; None without a certificate."""
    try:
        found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined] # Python has no other name
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return None
    return ssl.cert_time_to_seconds(found["notAfter"])


def listener_end(path: str) -> Optional[int]:
    """The same for the certificate of port 6443."""
    try:
        with open(path) as stream:
            pem = base64.b64decode(json.load(stream)["data"]["tls.crt"])
    except (IOError, ValueError, KeyError, TypeError):
        return None
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(pem)
        copy.flush()
        return end(copy.name)


def digest(path: str) -> str:
    """Digest of a bundle of CAs that does not depend on line ends."""
    with open(path, "rb") as stream:
        return hashlib.sha256(b"".join(stream.read().split())).hexdigest()


def entry(path: str, kind: str, ends: int) -> Dict[str, Any]:
    """One certificate as a fact. `digest` is null unless it is a CA."""
    name = os.path.basename(path).rsplit(".", 1)[0]
    if os.path.basename(os.path.dirname(path)) == "etcd":
        name = "etcd-" + name
    return {
        "name": name,
        "path": path,
        "kind": kind,
        "ends": ends,
        "written": os.stat(path).st_mtime,
        "digest": digest(path) if kind == "ca" else None,
    }


def files(directory: str, is_server: bool) -> List[Dict[str, Any]]:
    """All certificates below K3s' data directory, the earliest expiration first."""
    found = []
    for place, names in RENEWED.items():
        if place.startswith("server") and not is_server:
            continue
        paths = [(os.path.join(directory, place, name + ".crt"), "leaf") for name in names]
        paths += [(path, "ca") for path in glob.glob(os.path.join(directory, place, "*-ca.crt"))]
        found += [(path, kind, end(path)) for path, kind in paths]
    if is_server:
        path = os.path.join(directory, LISTENER)
        found.append((path, "listener", listener_end(path)))
    known = [entry(path, kind, ends) for path, kind, ends in found if ends is not None]
    return sorted(known, key=lambda one: (one["ends"], one["path"]))


def valid_days(variables: Dict[str, str]) -> int:
    """Days for which certificates of K3s' next start are valid, by the variables of its unit."""
    try:
        return int(variables.get(VALID_DAYS_VARIABLE, ""))
    except ValueError:
        return VALID_DAYS


def started(properties: Dict[str, str]) -> Optional[float]:
    """When a unit's process started, in seconds since 1970; None if it does not run."""
    microseconds = int(properties.get("ExecMainStartTimestampMonotonic") or 0)
    if properties.get("ActiveState") != "active" or not microseconds:
        return None
    # The board's clock may have been set since; the monotonic one counts on.
    return time.time() - (time.monotonic() - microseconds / 1e6)


def certificate_facts(
    root: str,
    settings: Dict[str, Optional[str]],
    unit: Dict[str, str],
    variables: Dict[str, str],
    is_server: bool,
) -> Dict[str, Any]:
    """Facts about the certificates of K3s with these settings, this unit and its variables."""
    directory = settings.get("data-dir") or DATA_DIRECTORY
    return {
        "files": files(os.path.join(root, directory.lstrip("/")), is_server),
        "started": started(unit),
        "valid_days": valid_days(variables),
    }
