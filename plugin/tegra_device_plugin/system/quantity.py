# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' quantities of bytes, such as 256Mi (apimachinery, pkg/api/resource/quantity.go)."""

from __future__ import annotations

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_QUANTITY = re.compile(r"([+-]?[0-9]{1,20})(?:\.([0-9]{1,20}))?(?:([kMGTPE]|[KMGTPE]i)|e([0-9]{1,2}))?")
_SUFFIXES: dict[str, int] = {"": 1, "k": 1000} | {
    f"{letter}{binary}": base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for binary, base in (("i", 1024), ("", 1000))
}


def parse(text: str) -> int:
    """Give the bytes of a quantity. Raises ValueError if it is none, or not of whole bytes."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise ValueError("a quantity of bytes is needed, such as 256Mi")
    whole, decimals, suffix, exponent = found.groups(default="")
    # Without `fractions`, which brings `decimal` along.
    scale: int = _SUFFIXES[suffix] * 10 ** int(exponent or 0)
    below: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * scale, below)
    if rest:
        raise ValueError("a whole number of bytes is needed")
    return size


def render(size: int) -> str:
    """Give a quantity of so many bytes in the largest unit that it is whole in."""
    for unit in ("Gi", "Mi", "Ki"):
        if size and size % _SUFFIXES[unit] == 0:
            return f"{size // _SUFFIXES[unit]}{unit}"
    return str(size)
