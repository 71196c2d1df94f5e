# SPDX-License-Identifier: Apache-2.0
"""The images of K3s' containerd, as `ctr` lists them.

Runs on the board, therefore Python 3.6 compatible.
"""

from typing import Dict, NamedTuple

CTR = ["k3s", "ctr", "--namespace=k8s.io", "images"]
LEAST_FIELDS = 4


class Present(NamedTuple):
    """An image of containerd."""

    digest: str
    labels: Dict[str, str]


def listed(text: str) -> Dict[str, Present]:
    """The images by their names, of `ctr images ls`: REF TYPE DIGEST SIZE UNIT PLATFORMS LABELS."""
    found = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= LEAST_FIELDS:
            pairs = (one.partition("=") for one in fields[-1].split(","))
            found[fields[0]] = Present(fields[2], {name: value for name, _, value in pairs if value})
    return found
