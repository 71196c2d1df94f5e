# SPDX-License-Identifier: Apache-2.0
"""Registries that an inventory has for K3s: what is wrong with them, and what Docker makes of them.

Pure functions, for the roles k3s and preflight.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_names

ANY = ""  # the key of a mapping with names of the owner's
WANTED = {str: "text", bool: "true or false", dict: "a mapping", list: "a list of addresses"}
# The keys of registries.yaml (rancher/wharfie, pkg/registries). K3s skips others in silence.
REGISTRIES = {
    "mirrors": {ANY: {"endpoint": [], "rewrite": {ANY: str}}},
    "configs": {
        ANY: {
            "auth": {"username": str, "password": str, "auth": str, "identity_token": str},
            "tls": {"ca_file": str, "cert_file": str, "key_file": str, "insecure_skip_verify": bool},
        }
    },
}
# What Docker has instead of the other keys.
OF_DOCKER = {
    "mirrors": "give registry-mirrors in nvidia_docker_daemon_config",
    "tls": "put certificates into /etc/docker/certs.d, or give insecure-registries in "
    "nvidia_docker_daemon_config",
    "identity_token": "give username and password",
}
# Docker's name of its own registry among credentials, which the kubelet knows, too.
DOCKER_HUB = "https://index.docker.io/v1/"
HUB_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")
# The first key is how jetson_facts knows the file again; Docker and the kubelet skip it.
AUTHOR = {"written-by": "Ansible (role k3s): k3s_registries of the inventory"}


def problems(given: Any, wanted: Any = REGISTRIES, place: str = "k3s_registries") -> Iterator[str]:
    """What is wrong with `k3s_registries`, each in a sentence without values, which may be secrets."""
    kind: type[Any] = wanted if isinstance(wanted, type) else type(wanted)
    if given is None:
        return
    if not isinstance(given, kind):
        yield f"{place}: {WANTED[kind]} is needed"
    elif kind is list:
        for number, endpoint in enumerate(given, 1):
            if not _is_address(endpoint):
                yield f"{place}: number {number} is not http://HOST or https://HOST"
    elif kind is dict:
        for key, value in given.items():
            if ANY not in wanted and key not in wanted:
                yield f"{place}: K3s knows no {key} here, but {', '.join(wanted)}"
            else:
                yield from problems(value, wanted.get(key, wanted.get(ANY)), f"{place}: {key}")


def _is_address(text: Any) -> bool:
    try:
        url = urlsplit(text) if isinstance(text, str) else urlsplit("")
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # of a port or an IPv6 address
        return False


def docker_problems(given: Any) -> Iterator[str]:
    """What Docker cannot do of `k3s_registries`, which has no problem for K3s."""
    if any(problems(given)):
        return
    if (given or {}).get("mirrors"):
        yield f"k3s_registries: mirrors: Docker does not read them; {OF_DOCKER['mirrors']}"
    for name, config in ((given or {}).get("configs") or {}).items():
        place, auth = f"k3s_registries: configs: {name}", (config or {}).get("auth") or {}
        if (config or {}).get("tls"):
            yield f"{place}: tls: Docker does not read it; {OF_DOCKER['tls']}"
        if "*" in name or "/" in name:
            yield f"{place}: Docker needs a registry as HOST or HOST:PORT"
        if auth.get("identity_token"):
            yield f"{place}: auth: the kubelet does not read identity_token; {OF_DOCKER['identity_token']}"
        elif auth and not _encoded(auth):
            yield f"{place}: auth: username and password are needed, or auth with both in base64"


def _encoded(auth: dict[str, str]) -> str:
    """User and password as Docker writes them; '' where one is missing."""
    if auth.get("auth"):
        try:
            return auth["auth"] if b":" in base64.b64decode(auth["auth"], validate=True) else ""
        except binascii.Error:
            return ""
    if not (auth.get("username") and auth.get("password")):
        return ""
    return base64.b64encode(f"{auth['username']}:{auth['password']}".encode()).decode()


def hosts(given: Any) -> list[str]:
    """Hosts that `k3s_registries` names: registries and the endpoints of mirrors. [] with a wrong setting."""
    if not given or any(problems(given)):
        return []
    mirrors, configs = given.get("mirrors") or {}, given.get("configs") or {}
    urls = [f"https://{name}" for name in (*mirrors, *configs) if "*" not in name]
    urls += [url for mirror in mirrors.values() for url in (mirror or {}).get("endpoint") or ()]
    return list(dict.fromkeys(host_names.host_of(url) for url in urls))


def docker_credentials(given: Any) -> str:
    """The kubelet's config.json, in Docker's format; '' without credentials or with a wrong setting."""
    if any(problems(given)):
        return ""
    auths = {
        DOCKER_HUB if name in HUB_NAMES else name: {"auth": _encoded(config["auth"])}
        for name, config in ((given or {}).get("configs") or {}).items()
        if (config or {}).get("auth")
    }
    return json.dumps({**AUTHOR, "auths": auths}, indent=4) + "\n" if auths else ""


FILTERS = {
    "k3s_docker_credentials": docker_credentials,
    "k3s_docker_problems": lambda given: [*docker_problems(given)],
    "k3s_registries_problems": lambda given: [*problems(given)],
}
