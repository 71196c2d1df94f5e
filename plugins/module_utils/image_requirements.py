# SPDX-License-Identifier: Apache-2.0
"""What an image needs of a board, as its configuration and its name say: architecture, CUDA, L4T.

Runs on the controller, and is Python 3.6 compatible as all of this directory.
"""

import re
from typing import Any, Dict, Optional

Data = Dict[str, Any]

# NVIDIA's CUDA images set CUDA_VERSION and NVARCH. Images for Jetson name L4T in a variable, a label, or the
# tag of the image or of its base, such as r36.4.0.
L4T_KEYS = ("L4T_VERSION", "L4T_RELEASE", "com.nvidia.l4t.version")
BASE = "org.opencontainers.image.base.name"
TAG = re.compile(r"[:-]r(3[2-9])(?:[.](\d+))?(?:[.](\d+))?(?![0-9a-z])")
NUMBER = re.compile(r"[rR]?(\d+(?:[.]\d+)*)")
# Programs of this architecture of CUDA are for servers with Arm processors.
SBSA = "sbsa"


def variables(config: Data) -> Dict[str, str]:
    """The environment of an image's configuration."""
    pairs = (str(one).partition("=") for one in config.get("Env") or [])
    return {name: value for name, _, value in pairs}


def number(text: Any) -> str:
    """The version at the beginning of a text, '' without one."""
    match = NUMBER.match(str(text or ""))
    return match.group(1) if match else ""


def tagged(name: Any) -> str:
    """The release of L4T in the tag of an image, '' without one."""
    match: Optional[Any] = TAG.search(str(name or ""))
    return ".".join(part for part in match.groups() if part) if match else ""


def requirements(described: Data, name: str = "") -> Dict[str, str]:
    """{architecture, cuda, l4t, cuda_arch} of an image by its configuration; '' where it says nothing."""
    config = described.get("config") or {}
    env, labels = variables(config), config.get("Labels") or {}
    l4t = [number(place[key]) for key in L4T_KEYS for place in (env, labels) if key in place]
    return {
        "architecture": str(described.get("architecture") or ""),
        "cuda": number(env.get("CUDA_VERSION")),
        "cuda_arch": SBSA if env.get("NVARCH") == SBSA else "",
        "l4t": next(filter(None, [*l4t, tagged(name), tagged(labels.get(BASE))]), ""),
    }
