# SPDX-License-Identifier: Apache-2.0
"""Quantities and names in the form that Kubernetes accepts."""

from __future__ import annotations

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_QUANTITY = re.compile(r"([+-]?[0-9]{1,20})(?:\.([0-9]{1,20}))?(?:([kMGTPE]|[KMGTPE]i)|e([0-9]{1,2}))?")
_SUFFIXES: dict[str, int] = {"": 1, "k": 1000} | {
    f"{letter}{binary}": base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for binary, base in (("i", 1024), ("", 1000))
}


def parse_quantity(text: str) -> int:
    """Give the bytes of a quantity. Raises ValueError for another text or a fraction of a byte."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise ValueError("a quantity of bytes is needed, such as 256Mi")
    whole, decimals, suffix, exponent = found.groups(default="")
    # Without `fractions`, which brings `decimal` along.
    scale: int = _SUFFIXES[suffix] * 10 ** int(exponent or 0)
    below: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * scale, below)
    if rest:
        raise ValueError("an integer of bytes is needed")
    return size


def render_quantity(size: int) -> str:
    """Give the quantity in the largest unit without a fraction."""
    for unit in ("Gi", "Mi", "Ki"):
        if size and size % _SUFFIXES[unit] == 0:
            return f"{size // _SUFFIXES[unit]}{unit}"
    return str(size)


DEFAULT_RESOURCE = "nvidia.com/gpu"
DRIVER = "gpu.jetson-k3s.github.io"
# Of CDI specs. Every runtime with CDI reads the first. It refuses versions and fields that it does not know.
# The second has `additionalGids`. Read from containerd 1.7.16 and 2.0, Docker 26.1, CRI-O 1.30, Podman 5.1 on
# (container-device-interface issue 199, containerd PR 10077, moby PR 47706; Podman 4.9 refuses it).
CDI_VERSIONS = ("0.5.0", "0.7.0")

_MAX_LABEL = 63  # characters of a label's value (apimachinery validation.go)
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]+")

# IsExtendedResourceName (kubernetes, pkg/apis/core/v1/helper/helpers.go); the kubelet refuses a Register
# otherwise. 244 characters: a quota's name for it, with `requests.` before it, is of 253 at most.
_PREFIX = r"(?=.{1,244}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def resource_name(text: str) -> str:
    """Give the full name of an extended resource; `gpu` is `nvidia.com/gpu`. Raises ValueError."""
    full = text if "/" in text else f"nvidia.com/{text}"
    prefix, _, name = full.partition("/")
    well_formed = re.fullmatch(_PREFIX, f"{prefix}/") and re.fullmatch(_NAME, name)
    if not well_formed or prefix.endswith("kubernetes.io") or prefix.startswith("requests."):
        raise ValueError("not the name of an extended resource, such as nvidia.com/gpu")
    return full


def label_value(text: str) -> str:
    """Give the text as a label's value: letters, digits and `._-` inside, a letter or digit at both ends."""
    return _NOT_IN_LABEL.sub("-", text)[:_MAX_LABEL].strip("._-")
