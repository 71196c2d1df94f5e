# SPDX-License-Identifier: Apache-2.0
"""Commands whose output facts are read from.

Runs on the board, therefore Python 3.6 compatible.
"""

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


class Commands:
    """Runs commands on the board; the output of a missing or failed command is an empty text."""

    def __init__(self, module: "AnsibleModule") -> None:
        self.module = module

    def path(self, name: str) -> Optional[str]:
        """Absolute path of an executable, None if there is none."""
        found: Optional[str] = self.module.get_bin_path(name, opt_dirs=["/usr/local/bin"])
        return found

    def output(self, *argv: str) -> str:
        """Standard output of a successful command, '' otherwise."""
        if self.path(argv[0]) is None:
            return ""
        code, out, _ = self.module.run_command([self.path(argv[0]), *argv[1:]])
        return out if code == 0 else ""

    def partial_output(self, *argv: str) -> str:
        """Standard output of a command, also if it fails for some of its arguments."""
        if self.path(argv[0]) is None:
            return ""
        out: str = self.module.run_command([self.path(argv[0]), *argv[1:]])[1]
        return out
