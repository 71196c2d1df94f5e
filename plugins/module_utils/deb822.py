# SPDX-License-Identifier: Apache-2.0
"""The format of Debian's control files and package indexes (deb822(5)).

Runs on the board and on the controller, therefore Python 3.6 compatible.
"""

import re
from typing import Dict


def parse_fields(text: str) -> Dict[str, str]:
    """The fields of a paragraph, {name: value}; a value goes on in lines that begin with a blank."""
    return dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t].*)*)$", text, re.MULTILINE))
