# SPDX-License-Identifier: Apache-2.0
"""Names of extended resources, and of the DRA driver."""

from __future__ import annotations

import re

DEFAULT_RESOURCE = "nvidia.com/gpu"
DRIVER = "gpu.jetson-k3s.github.io"

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
