# SPDX-License-Identifier: Apache-2.0
"""When a pod counts as one that takes more GPU memory than its share. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# One look can hit a process that is about to free what it holds twice.
LOOKS = 2


class Overuse:
    """Pods over their limits, and for how many looks in a row."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def observe(self, used: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
        """Give the pods (uids) that have just come to LOOKS in a row; bytes by uid go in.

        A pod that stays over its limit is given once. Whoever acts on it calls `forgive`, so that it counts
        anew. Only a pod with a limit can be over it.
        """
        over = {uid for uid, held in used.items() if limits.get(uid) and held > limits[uid]}
        self._looks = {uid: self._looks.get(uid, 0) + 1 for uid in over}
        return sorted(uid for uid, looks in self._looks.items() if looks == LOOKS)

    def forgive(self, uid: str) -> None:
        """Begin to count anew for a pod."""
        self._looks.pop(uid, None)
