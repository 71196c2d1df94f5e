#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read Docker's runtimes and the group that owns the GPU.

Runs on the board, therefore Python 3.6 compatible.
"""

import grp
import json
from typing import Any, Dict, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: gpu_board
short_description: Docker's runtimes and the group video of a board
description:
  - Changes nothing. If Docker does not answer, its error is in the result.
options: {}
"""

RETURN = r"""
engine: {type: dict, description: 'Part of C(docker info), or C(error) of docker.'}
video_group: {type: int, description: 'Number of the group video, null without one.'}
"""

Data = Dict[str, Any]  # parsed JSON

KEYS = ("ServerVersion", "DefaultRuntime", "Runtimes")


def engine(code: int, out: str, err: str) -> Data:
    """What `docker info --format '{{json .}}'` says."""
    try:
        info = json.loads(out)
    except ValueError:
        info = {}
    if code != 0 or not info.get("ServerVersion"):
        errors = info.get("ServerErrors") or [err.strip() or "docker info ended with {}".format(code)]
        return {"error": redact("; ".join(errors))}
    return {key: info.get(key) for key in KEYS}


def group(name: str) -> Optional[int]:
    """Number of a group, None if there is none of that name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    docker = module.get_bin_path("docker")
    if docker is None:
        found: Data = {"error": "docker is not installed"}
    else:
        found = engine(*module.run_command([docker, "info", "--format", "{{json .}}"]))
    module.exit_json(changed=False, engine=found, video_group=group("video"))


if __name__ == "__main__":
    main()
