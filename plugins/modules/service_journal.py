#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The last lines of a service's journal, without secrets.

Runs on the board, therefore Python 3.6 compatible.
"""

from typing import Callable, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: service_journal
short_description: The last lines of a service's journal
description:
  - Services write secrets into the journal. The module replaces them on the board, before Ansible shows them.
options:
  unit: {required: true, description: Name of the service's unit.}
"""

RETURN = r"""
text: {type: str, description: 'The lines, or the error message of journalctl.'}
"""

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

LINES = 15


def journal(run: Run, journalctl: Optional[str], unit: str) -> str:
    """The last lines of a unit's journal, or the error message; C(run) is AnsibleModule.run_command."""
    if journalctl is None:
        return "this board has no journalctl"
    argv = [journalctl, "--unit=" + unit, "--lines={}".format(LINES), "--no-pager", "--output=cat"]
    code, out, err = run(argv, errors="replace")
    return redact(out if code == 0 else err).rstrip("\n")


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    text = journal(module.run_command, module.get_bin_path("journalctl"), module.params["unit"])
    module.exit_json(changed=False, text=text)


if __name__ == "__main__":
    main()
