# SPDX-License-Identifier: Apache-2.0
"""What is wrong with registries that an inventory has for K3s: pure functions, for role preflight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

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


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filter, prefixed by the role's name."""
        return {"k3s_registries_problems": lambda given: [*problems(given)]}
