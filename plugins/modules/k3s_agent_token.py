#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Make the token of agents with which a new cluster begins.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import secrets

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file

DOCUMENTATION = r"""
module: k3s_agent_token
short_description: The token of agents with which a new cluster begins
description:
  - Writes a random token to a file that only root can read. It is in no argument and in no result.
  - A file that exists stays. An interrupted run may have written it, and K3s may have started with it.
  - Writes nothing if K3s has data already. K3s keeps the first token of agents in its data store, and does
    not start at the start after the next one with another token.
options:
  data: {type: path, required: true, description: The directory of K3s' server data.}
  path: {type: path, required: true, description: The token file.}
"""

RETURN = r"""
own: {type: bool, description: 'Whether the file exists, or would exist outside check mode.'}
"""

# What K3s writes at its first start, in this order: pkg/daemons/control/deps, and pkg/server, printTokens.
DATA = ("db", "cred/passwd", "token")
# As K3s makes a token (pkg/daemons/control/deps, getServerPass).
TOKEN_BYTES = 16
PRIVATE = 0o600


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "data": {"type": "path", "required": True},
            "path": {"type": "path", "required": True, "no_log": False},
        },
        supports_check_mode=True,
    )
    path, data = module.params["path"], module.params["data"]
    there = os.path.exists(path)
    make = not there and not any(os.path.exists(os.path.join(data, name)) for name in DATA)
    if make and not module.check_mode:
        replace_file(path, secrets.token_hex(TOKEN_BYTES) + "\n", PRIVATE)
    module.exit_json(changed=make, own=there or make)


if __name__ == "__main__":
    main()
