#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Remove the DaemonSets of the device plugin's configurations that no node has any more.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

from typing import Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    KUBECONFIG,
    Data,
    KubectlError,
    has_kubectl,
    listed,
    run,
    selects,
    use,
)

DOCUMENTATION = r"""
module: gpu_configurations
short_description: No DaemonSet of a configuration that no node has
description:
  - The plugin's pods run where the label of a node has the name of their configuration.
  - A node that still has it, such as that of a board which was off during the run, keeps its DaemonSet.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  kept: {type: list, elements: str, required: true, description: 'DaemonSets of the inventory, which stay.'}
  unused:
    description:
      By the label of an API that no board of the inventory has, its objects in kube-system, as KIND/NAME.
    type: dict
    default: {}
"""

RETURN = r"""
removed: {type: list, elements: str, description: 'What was removed, as KIND/NAME.'}
"""


NAMESPACE = "--namespace=kube-system"
DAEMONSETS = ("tegra-device-plugin", "tegra-dra-driver", "tegra-gpu-agent")
OURS = "--selector=app.kubernetes.io/name in ({})".format(", ".join(DAEMONSETS))
# Role gpu_device_plugin sets it on what belongs to a configuration with a name (plugin_utils).
CONFIGURATION = "jetson-k3s.github.io/configuration"


def surplus(
    kept: List[str], unused: Dict[str, List[str]], daemonsets: List[Data], nodes: List[Data]
) -> List[str]:
    """The objects that go, as KIND/NAME. Some may not be there."""
    labels = [node["metadata"].get("labels") or {} for node in nodes]
    gone = []
    for daemonset in daemonsets:
        metadata = daemonset["metadata"]
        name, ours = metadata["name"], CONFIGURATION in (metadata.get("labels") or {})
        of_role = ours or metadata["name"] in DAEMONSETS
        if of_role and name not in kept and not any(selects(daemonset, one) for one in labels):
            gone += ["daemonset.apps/" + name, "configmap/" + name]
    for label, objects in unused.items():
        if not any(label in one for one in labels):
            gone += [one for one in objects if one not in gone]
    return gone


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "kept": {"type": "list", "elements": "str", "required": True},
            "unused": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    use(module.params)
    if module.check_mode and not has_kubectl():
        module.exit_json(changed=False, removed=[])
    kept, unused = module.params["kept"], module.params["unused"]
    try:
        items = surplus(kept, unused, listed("daemonsets.apps", NAMESPACE, OURS), listed("nodes"))
        there = run("get", NAMESPACE, "--ignore-not-found", "--output=name", *items).split() if items else []
        # DaemonSets last: while one is there, a run that follows an interrupted one looks for the rest.
        there.sort(key=lambda one: one.startswith("daemonset.apps/"))
        if there and not module.check_mode:
            run("delete", NAMESPACE, "--ignore-not-found", *there)
    except (KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    shown = "".join("removed: {}\n".format(name) for name in there)
    module.exit_json(changed=bool(there), removed=there, diff={"prepared": shown})


if __name__ == "__main__":
    main()
