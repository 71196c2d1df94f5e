# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: a board that does not answer."""

from __future__ import annotations

from typing import Any, NoReturn

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: gone
short_description: SIMULATED board that does not answer
description: Each command and each copy fails as with ssh.
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):  # type: ignore[misc] # ansible-core has no types
    """Fails."""

    transport = "gone"

    def exec_command(self, *_given: Any, **_options: Any) -> NoReturn:
        """No command runs."""
        raise AnsibleConnectionFailure("no route to host")

    def put_file(self, *_given: Any, **_options: Any) -> NoReturn:
        """No file gets there."""
        raise AnsibleConnectionFailure("no route to host")
