# SPDX-License-Identifier: Apache-2.0
"""Anchors of headings, as GitHub makes them."""

import re

# GitHub drops these characters, then it writes '-' for each blank.
NOT_IN_AN_ANCHOR = re.compile(r"[^\w\- ]")


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the first heading of this text."""
    return NOT_IN_AN_ANCHOR.sub("", heading.strip().lower()).replace(" ", "-")
