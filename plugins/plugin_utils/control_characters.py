# SPDX-License-Identifier: Apache-2.0
"""Control characters in a readable form: a terminal obeys those in the text of a board."""

from __future__ import annotations

import re

from ansible.constants import COLOR_CODES

# Ansible's colours, as its `stringc` writes them.
COLOURS = "|".join(map(re.escape, sorted({"0", *COLOR_CODES.values()})))
CONTROL = re.compile(rf"\x1b\[(?:{COLOURS})m|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """The text with control characters in a readable form. Lines, tabs and Ansible's colours stay."""
    return CONTROL.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\x{ord(found[0]):02x}", text)
