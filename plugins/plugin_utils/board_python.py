# SPDX-License-Identifier: Apache-2.0
"""What a failure says about a board's Python: is it absent, or too old for this ansible-core?"""

from __future__ import annotations

import re

from ansible.release import __version__ as ansible_core

# The shell's exit status for a program that is not there.
NOT_FOUND = 127
# Ansible's message from 2.20 on, and that up to 2.19.
NAMED = re.compile(r"requires Python|requires a minimum of Python version")
# Of Pythons that are older still: they cannot read Ansible's modules.
UNREADABLE = re.compile(r"SyntaxError|MODULE FAILURE|deserialization")

ABSENT = (
    "The board has no Python where Ansible looks for it. `sudo apt install python3` on the board, or say "
    "where it is by ansible_python_interpreter in the inventory."
)
OTHER = (
    f"This computer has ansible-core {ansible_core}. JetPack 4 has Python 3.6, and needs ansible-core 2.16: "
    "`make venv ANSIBLE=2.16`. JetPack 5 has Python 3.8, and needs 2.19 or 2.16: `make venv ANSIBLE=2.19`. "
    "Then use .venv/bin/ansible-playbook."
)


def first_failure(message: str, status: int) -> str:
    """What to do if a board's first module fails with a message and an exit status; '' for another reason."""
    if status == NOT_FOUND:
        return ABSENT
    return OTHER if NAMED.search(message) or UNREADABLE.search(message) else ""


def too_old(message: str) -> str:
    """What to do if a message says that a board's Python is too old, and does not say what to do; else ''."""
    return OTHER if NAMED.search(message) and OTHER not in message else ""


FILTERS = {"board_python_advice": first_failure}
