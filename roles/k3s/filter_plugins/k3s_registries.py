# SPDX-License-Identifier: Apache-2.0
"""What is wrong with registries that an inventory has for K3s: pure functions, for role preflight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

# The keys of registries.yaml (rancher/wharfie, pkg/registries). K3s skips others in silence.
TOP = ("mirrors", "configs")
MIRROR = ("endpoint", "rewrite")
CONFIG = ("auth", "tls")
AUTH = ("username", "password", "auth", "identity_token")
SWITCH = "insecure_skip_verify"
TLS = ("ca_file", "cert_file", "key_file", SWITCH)


def problems(registries: Any) -> list[str]:
    """What is wrong with `k3s_registries`, each in a sentence without values, which may be secrets."""
    top, found = _keys(registries, "k3s_registries", TOP)
    for names, of_one in (("mirrors", _of_mirror), ("configs", _of_config)):
        entries, wrong = _keys(top.get(names), names)
        found += wrong
        for name, entry in entries.items():
            found += of_one(entry, f"{names}: {name}")
    return found


def _keys(value: Any, place: str, known: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """A mapping and what is wrong with it; it is empty for null and for what is none."""
    if value is None:
        return {}, []
    if not isinstance(value, dict):
        return {}, [f"{place}: a mapping is needed"]
    strange = [key for key in value if known and key not in known]
    return value, [f"{place}: K3s knows no {key} here, but {', '.join(known)}" for key in strange]


def _of_mirror(mirror: Any, place: str) -> Iterator[str]:
    given, wrong = _keys(mirror, place, MIRROR)
    yield from wrong
    endpoints = given.get("endpoint")
    if not isinstance(endpoints, list | None):
        yield f"{place}: endpoint: a list of addresses is needed"
        endpoints = None
    for number, endpoint in enumerate(endpoints or [], 1):
        if not _is_address(endpoint):
            yield f"{place}: endpoint: number {number} is not http://HOST or https://HOST"
    yield from _texts(given.get("rewrite"), f"{place}: rewrite")


def _of_config(config: Any, place: str) -> Iterator[str]:
    given, wrong = _keys(config, place, CONFIG)
    yield from wrong
    yield from _texts(given.get("auth"), f"{place}: auth", AUTH)
    tls, wrong = _keys(given.get("tls"), f"{place}: tls", TLS)
    yield from wrong
    yield from _texts({key: text for key, text in tls.items() if key != SWITCH}, f"{place}: tls")
    if not isinstance(tls.get(SWITCH, False), bool):
        yield f"{place}: tls: {SWITCH}: true or false is needed"
    if bool(tls.get("cert_file")) != bool(tls.get("key_file")):
        yield f"{place}: tls: cert_file and key_file are needed together"


def _texts(value: Any, place: str, known: tuple[str, ...] = ()) -> Iterator[str]:
    """What is wrong with a mapping of texts."""
    given, wrong = _keys(value, place, known)
    yield from wrong
    yield from (f"{place}: {key}: text is needed" for key, text in given.items() if not isinstance(text, str))


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
        return {"k3s_registries_problems": problems}
