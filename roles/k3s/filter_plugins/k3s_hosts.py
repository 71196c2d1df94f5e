# SPDX-License-Identifier: Apache-2.0
"""The hosts file of a board that gets another hostname."""

from __future__ import annotations

import re
from typing import Any

# Debian's address of the hostname (Debian reference 5.1.1): sudo and others look it up.
OWN = re.compile(r"^127\.0\.1\.1\s.*$", re.MULTILINE)


def hosts(text: str, old: str, new: str) -> str:
    """The text of /etc/hosts with `new` instead of `old` at 127.0.1.1; other names and lines stay."""
    found = OWN.search(text)
    if found is None:
        lines = text.splitlines()
        after = max((place for place, line in enumerate(lines, 1) if line.startswith("127.")), default=0)
        return "\n".join([*lines[:after], f"127.0.1.1\t{new}", *lines[after:]]) + "\n"
    names, hash_, comment = found[0].partition("#")
    others = [name for name in names.split()[1:] if name not in (old, new)]
    line = "\t".join(["127.0.1.1", " ".join([new, *others])]) + (f" {hash_}{comment}" if hash_ else "")
    return text[: found.start()] + line + text[found.end() :]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filter, prefixed by the role's name."""
        return {"k3s_hosts": hosts}
