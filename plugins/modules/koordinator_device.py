#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keep Koordinator's Device of a node, where the cluster knows such a thing and no koordlet makes it.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import json
from typing import Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    KUBECONFIG,
    Data,
    KubectlError,
    get,
    has_kubectl,
    run,
    use,
)

DOCUMENTATION = r"""
module: koordinator_device
short_description: Koordinator's Device of a node
description:
  - Nothing is done where the cluster does not have Koordinator's CRD.
  - A Device that koordlet has made, or taken over, is left alone. koordlet keeps it up to date.
  - The Device goes with its node.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  device: {type: dict, required: true, description: 'The Device, named as its node.'}
"""

RETURN = r"""
found: {description: Why nothing was done; empty if the Device is as it should be now.}
"""


KIND = "devices.scheduling.koordinator.sh"
MANAGED_BY = "app.kubernetes.io/managed-by"
# `kubectl diff` ends with 1 when there is a difference.
DIFFERENT = (0, 1)


def reason_to_skip(device: Data) -> str:
    """Why we must not make the Device, '' if we may."""
    if get("customresourcedefinition", KIND) is None:
        return "the cluster does not have the CRD {}".format(KIND)
    there = get(KIND, device["metadata"]["name"])
    ours = device["metadata"]["labels"][MANAGED_BY]
    if there and (there["metadata"].get("labels") or {}).get(MANAGED_BY) != ours:
        return "koordlet makes it"
    return ""


def owned(device: Data, node: Data) -> Data:
    """The Device as a part of its node, as koordlet writes it."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node["metadata"]["name"],
        "uid": node["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return dict(device, metadata=dict(device["metadata"], ownerReferences=[owner]))


def ensure(device: Data, check_mode: bool) -> Tuple[str, str]:
    """(why the Device was skipped or '', difference between the cluster's and ours)."""
    reason, node = reason_to_skip(device), get("node", device["metadata"]["name"])
    if reason or node is None:
        return reason or "the cluster does not have this node", ""
    text = json.dumps(owned(device, node))
    difference = run("diff", "--filename=-", stdin=text, accept=DIFFERENT)
    if difference and not check_mode:
        run("apply", "--filename=-", stdin=text)
    return "", difference


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={**KUBECONFIG, "device": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    device = module.params["device"]
    use(module.params)
    if module.check_mode and not has_kubectl():
        module.exit_json(changed=False, found="K3s is not there yet")
    try:
        found, difference = ensure(device, module.check_mode)
    except (KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(difference), found=found, diff={"prepared": difference})


if __name__ == "__main__":
    main()
