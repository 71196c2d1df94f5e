# SPDX-License-Identifier: Apache-2.0
"""A finding at one line of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tegra_device_plugin.sharing.manifests.text import Field

Verdict = Literal["runs", "translated", "refused"]
VERDICTS: Mapping[Verdict, str] = {
    "runs": "runs as it is",
    "translated": "runs, with another meaning",
    "refused": "does not run as it is",
}
"""In words, the best first."""


class Finding(NamedTuple):
    """The verdict on one field."""

    verdict: Verdict
    field: Field
    text: str
    instead: tuple[str, ...] | None = None
    """Lines in the place of the field; none: remove it. None: no line replaces it."""
