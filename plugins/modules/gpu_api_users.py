#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""List the pods that use a GPU by the other API.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import json
from typing import Any, List, Set

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    KUBECONFIG,
    Data,
    KubectlError,
    claim_users,
    get,
    has_kubectl,
    listed,
    use,
)

DOCUMENTATION = r"""
module: gpu_api_users
short_description: Pods of a node that use its GPU by the other API
description:
  - The device plugin and the DRA driver do not know of each other's pods. Each would allocate the GPU again.
  - A pod whose claim is prepared cannot end without the driver that has prepared it.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  api: {choices: [device-plugin, dra], required: true, description: What is to give the GPU out.}
  node: {required: true, description: The node.}
"""

RETURN = r"""
users:
  type: list
  elements: str
  description: Such pods, as NAMESPACE/NAME; none if the node does not have the other API's label.
"""


NAMESPACE = "--namespace=kube-system"
DRIVER = "gpu.jetson-k3s.github.io"
PLUGIN = "tegra-device-plugin"
# By API, the label of the nodes that the other one serves.
OTHER = {"dra": "jetson-k3s.github.io/device-plugin", "device-plugin": "jetson-k3s.github.io/dra"}
# How the names begin of what the plugin offers (its config/units.py), unless its settings say others.
OFFERED = (
    "nvidia.com/gpu",
    "jetson-k3s.github.io/gpu-",
    "elasticgpu.io/gpu-",
    "tke.cloud.tencent.com/qgpu-",
    "tencent.com/vcuda-",
    "aliyun.com/gpu-",
    "metax-tech.com/",
    "koordinator.sh/gpu",
)
# Keys of the settings that name a resource.
NAMING = ("name", "rename", "coreResource", "memoryResource")
ENDED = ("Succeeded", "Failed")


def named(settings: Any) -> Set[str]:
    """Names of resources anywhere in the plugin's settings."""
    if isinstance(settings, list):
        return {name for one in settings for name in named(one)}
    if not isinstance(settings, dict):
        return set()
    own = {settings[key] for key in NAMING if isinstance(settings.get(key), str)}
    return own.union(*map(named, settings.values()))


def settings_of(config_map: Data) -> Any:
    """The plugin's settings, which the role writes as JSON."""
    try:
        return json.loads(config_map["data"]["config.yaml"])
    except (TypeError, KeyError, ValueError):
        return {}


def limits(pod: Data) -> Set[str]:
    """Names of what a pod's containers ask for."""
    containers = pod["spec"]["containers"] + (pod["spec"].get("initContainers") or [])
    return {name for one in containers for name in (one.get("resources") or {}).get("limits") or {}}


def holders(pods: List[Data], names: Set[str]) -> List[str]:
    """Pods that request one of these resources, or one of the plugin's own."""
    return sorted(
        "{namespace}/{name}".format(**pod["metadata"])
        for pod in pods
        if pod["status"].get("phase") not in ENDED
        and pod["spec"].get("nodeName")
        and any(name in names or name.startswith(OFFERED) for name in limits(pod))
    )


def users(api: str, node: str) -> List[str]:
    """Pods of the node that use its GPU by the other API."""
    found = get("node", node)
    if found is None or OTHER[api] not in (found["metadata"].get("labels") or {}):
        return []
    if api == "device-plugin":
        # The driver's pool of devices has the node's name.
        return claim_users(listed("resourceclaims", "--all-namespaces"), DRIVER, node)
    maps = [
        one
        for one in listed("configmaps", NAMESPACE)
        if one["metadata"]["name"] == PLUGIN or one["metadata"]["name"].startswith(PLUGIN + "-")
    ]
    names = named([settings_of(one) for one in maps])
    return holders(listed("pods", "--all-namespaces", "--field-selector=spec.nodeName=" + node), names)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "api": {"type": "str", "required": True, "choices": sorted(OTHER)},
            "node": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    use(module.params)
    if module.check_mode and not has_kubectl():
        module.exit_json(changed=False, users=[])
    try:
        module.exit_json(changed=False, users=users(module.params["api"], module.params["node"]))
    except (KubectlError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
