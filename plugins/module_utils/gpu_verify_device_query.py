# SPDX-License-Identifier: Apache-2.0
"""Reads what NVIDIA's samples deviceQuery and deviceQueryDrv print, of CUDA 10 (L4T 32) to 13 (L4T 39).

Runs on the board, therefore Python 3.6 compatible.
"""

import re
from typing import Any, Dict, Optional

# CUDA 10 pads with blanks, later ones with zeros.
MULTIPROCESSORS = re.compile(r"\(\s*0*(\d+)\)\s+Multiprocessors,\s+\(\s*0*(\d+)\)")
# The words of deviceQuery, and of deviceQueryDrv (helper_cuda_drvapi.h of CUDA's samples).
ERRORS = (
    re.compile(r"^cudaGetDeviceCount returned (\d+)\n-> (.+)$", re.MULTILINE),
    re.compile(r'Driver API error = (\d+) "([^"]+)"'),
)
SIMULATED = "SIMULATED"  # how the lab's images mark their output


def parse(text: str) -> Dict[str, Any]:
    """Properties of the first device, None if missing, and whether the output is simulated."""

    def find(pattern: str) -> Optional[str]:
        match = re.search(pattern, text, re.MULTILINE)
        return match.group(1) if match else None

    def number(pattern: str) -> Optional[int]:
        found = find(pattern)
        return int(found) if found else None

    processors = MULTIPROCESSORS.search(text)
    integrated = find(r"^\s*Integrated GPU sharing Host Memory:\s+(Yes|No)")
    return {
        "result": find(r"^Result = (\w+)"),
        "detected": number(r"^Detected (\d+) CUDA Capable device"),
        "device": find(r'^Device 0: "([^"]*)"'),
        "compute_capability": find(r"CUDA Capability Major/Minor version number:\s+(\S+)"),
        "multiprocessors": int(processors.group(1)) if processors else None,
        "cores_per_multiprocessor": int(processors.group(2)) if processors else None,
        "memory_bytes": number(r"Total amount of global memory:.*\((\d+) bytes\)"),
        "integrated": integrated == "Yes" if integrated else None,
        "simulated": SIMULATED in text,
    }


def complaint(text: str) -> str:
    """CUDA's error in one line, else the end of the output."""
    for pattern in ERRORS:
        match = pattern.search(text)
        if match:
            return "CUDA error {}: {}".format(int(match.group(1)), match.group(2))
    return "its output ends with {!r}".format(text.strip()[-200:])
