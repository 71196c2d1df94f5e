#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take a node out of service, put it back, or have the cluster forget it.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import json
import time
from typing import Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    CORDONED,
    KUBECONFIG,
    Data,
    KubectlError,
    get,
    is_true,
    listed,
    run,
    use,
    voter,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_offers import (
    NotOfferedError,
    devices,
    extended,
    wait_offered,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_owner import (
    PASSWORD,
    check_owner,
    password,
)

DOCUMENTATION = r"""
module: k3s_node_schedule
short_description: A node in service, drained, or forgotten by its cluster
description:
  - Drains a node, uncordons it, or deletes it from the cluster.
  - Refused for a node that is not known as that of the board, by the cluster's record and the inventory.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  name: {required: true, description: The node.}
  board: {required: true, description: 'The board in the inventory whose node it is.'}
  boards:
    description: The addresses that the inventory gives each of its boards (filter C(k3s_boards)).
    type: dict
    required: true
  state:
    description:
      - C(known) only says what the node offers.
      - C(drained) takes no new pods and has none but those of DaemonSets.
      - C(schedulable) takes pods again, if C(drained) is what had stopped it; an owner's own cordon stays.
      - C(forgotten) is no node, and its name is free for another board (K3s keeps a password for each name).
    choices: [known, drained, schedulable, forgotten]
    required: true
  drain_arguments: {type: list, elements: str, default: [], description: Arguments of C(kubectl drain).}
  offers:
    description:
      - What it has to offer first, having just started again, with numbers. These are extended resources, and
        devices that claims can have, by the name of their driver.
    type: dict
    default: {}
  boot_id: {description: 'What its kubelet must report first, since the board was started with it.'}
  quorum: {type: bool, default: false, description: Refuse if etcd would lose its majority.}
  servers:
    description:
      - For C(quorum), the boot ids of other servers by node, empty for a server that does not answer over
        SSH. Such a server counts as down, and so does a server whose kubelet has not reported this boot. A
        node can be Ready for 40 s after its board has gone down.
    type: dict
    default: {}
  timeout: {type: int, default: 300, description: 'Seconds for a drain, the offers, or the end of a node.'}
"""

RETURN = r"""
known: {type: bool, description: 'Whether the cluster knew the node, or kept its name''s password.'}
offers: {type: dict, description: 'What the node offers, or has offered when it was cordoned.'}
capacity: {type: dict, description: 'Its extended resources, allocatable or not.'}
cordoned: {type: bool, description: Whether the node is cordoned now by this module.}
nodes: {type: list, elements: str, description: 'The nodes, if the one to forget is unknown.'}
"""


# What kubectl says of an object that is still there (k8s.io/kubectl, pkg/cmd/wait); its deletion goes on.
TIMED_OUT = "timed out waiting for the condition"
MEMBER_STAYS = (
    ". K3s removes the node's member of etcd first, for which etcd needs a majority that works. To see what "
    "K3s waits for, type on a server: sudo journalctl -u k3s | grep -i etcd. The deletion goes on. Later run "
    "the same command again"
)
# Seconds until the kubelet has reported the changes of a restart (its nodeStatusUpdateFrequency is 10).
SETTLE_SECONDS = 12


def is_drained(pods: List[Data]) -> bool:
    """Is nothing left that a drain would move? Pods of DaemonSets, static pods and finished ones stay."""
    for pod in pods:
        metadata = pod["metadata"]
        owners = [owner["kind"] for owner in metadata.get("ownerReferences", [])]
        static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
        finished = pod["status"].get("phase") in ("Succeeded", "Failed")
        if "DaemonSet" not in owners and not static and not finished:
            return False
    return True


def drain(name: str, node: Data, offers: Dict[str, int], params: Data, check_mode: bool) -> bool:
    """Drain, and note what the node offers; returns whether there was anything to do."""
    pods = listed("pods", "--all-namespaces", "--field-selector=spec.nodeName=" + name)
    if node["spec"].get("unschedulable") and is_drained(pods):
        return False
    if not check_mode:
        if not node["spec"].get("unschedulable"):
            run("annotate", "--overwrite", "node", name, "{}={}".format(CORDONED, json.dumps(offers)))
        run("drain", "--timeout={}s".format(params["timeout"]), *(params["drain_arguments"] + [name]))
    return True


def recorded(node: Data) -> Dict[str, int]:
    """What a node offered when drain() cordoned it; {} where a release before this one did, or nobody."""
    try:
        offers = json.loads(node["metadata"].get("annotations", {}).get(CORDONED, "{}"))
        return {name: int(number) for name, number in offers.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def most(*offers: Dict[str, int]) -> Dict[str, int]:
    """The larger number of each name."""
    return {name: max(one.get(name, 0) for one in offers) for one in offers for name in one}


def why_down(name: str, node: Data, servers: Dict[str, str]) -> str:
    """Why a member of etcd counts as down, '' if it works. `servers` is the option of this name."""
    if not (voter(node) and is_true(node, "Ready")):
        return "is not Ready, or no voter yet"
    boot_id = servers.get(name)
    if boot_id == "":
        return "does not answer over SSH"
    if boot_id and boot_id != node["status"]["nodeInfo"]["bootID"]:
        return "has started, and its kubelet has not reported since"
    return ""


def check_quorum(name: str, nodes: List[Data], servers: Dict[str, str]) -> None:
    """KubectlError if etcd would have no majority without this node; a single member has none anyway."""
    members = {node["metadata"]["name"]: node for node in nodes if voter(node) is not None}
    down = {other: why_down(other, node, servers) for other, node in sorted(members.items())}
    well = [other for other, why in down.items() if not why]
    left = [other for other in well if other != name]
    if name not in members or len(members) == 1 or len(left) > len(members) // 2:
        return
    if len(well) == len(members):
        raise KubectlError("etcd has 2 members and needs both. Let another server join first, by site.yml")
    raise KubectlError(
        "etcd has {} members and needs {}, and only {} work: {}. Repair the others first".format(
            len(members),
            len(members) // 2 + 1,
            ", ".join(well) or "none",
            "; ".join("{} {}".format(other, why) for other, why in down.items() if why),
        )
    )


def uncordon(name: str, node: Data, check_mode: bool) -> bool:
    """Let a node that drain() has cordoned take pods again; returns whether it was one."""
    if CORDONED not in node["metadata"].get("annotations", {}):
        return False
    if not check_mode:
        run("uncordon", name)
        run("annotate", "node", name, CORDONED + "-")
    return True


def forget(name: str, node: Optional[Data], secret: Optional[Data], params: Data, check_mode: bool) -> bool:
    """Remove the node and the Secret that keeps its name; returns whether there was any of both.

    kubectl waits until the node is gone. A member of etcd is removed before: K3s' controller of members has a
    finalizer on the node (pkg/etcd/member_controller.go).
    """
    waits = "--timeout={}s".format(params["timeout"])
    member = node is not None and voter(node) is not None
    known = [("node", name)] if node else []
    if secret:
        known.append(("secret", name + PASSWORD))
    if not check_mode:
        for kind, what in known:
            try:
                run("--namespace=kube-system", "delete", "--ignore-not-found", waits, kind, what)
            except KubectlError as error:
                waited = kind == "node" and member and TIMED_OUT in str(error)
                raise KubectlError("{}{}".format(error, MEMBER_STAYS if waited else "")) from None
    return bool(known)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "name": {"type": "str", "required": True},
            "board": {"type": "str", "required": True},
            "boards": {"type": "dict", "required": True},
            "state": {
                "type": "str",
                "choices": ["known", "drained", "schedulable", "forgotten"],
                "required": True,
            },
            "drain_arguments": {"type": "list", "elements": "str", "default": []},
            "offers": {"type": "dict", "default": {}},
            "boot_id": {"type": "str"},
            "quorum": {"type": "bool", "default": False},
            "servers": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    name, state, boot_id = (module.params[key] for key in ("name", "state", "boot_id"))
    use(module.params)
    try:
        if (module.params["offers"] or boot_id) and not module.check_mode:
            # Before anything else: the server itself may be starting again, and until then the status is from
            # before the restart.
            time.sleep(SETTLE_SECONDS)
            wanted = {key: int(number) for key, number in module.params["offers"].items()}
            wait_offered(name, wanted, module.params["timeout"], boot_id)
        node, secret = get("node", name), password(name)
        check_owner(node, secret, module.params)
        known = node is not None
        nodes: List[str] = []
        offered = most(dict(extended(node), **devices(name)), recorded(node)) if node else {}
        if module.params["quorum"]:
            check_quorum(name, listed("nodes"), module.params["servers"])
        cordoned = node is not None and CORDONED in node["metadata"].get("annotations", {})
        if state == "forgotten":
            changed = known = forget(name, node, secret, module.params, module.check_mode)
            if not known:
                nodes = sorted(item["metadata"]["name"] for item in listed("nodes"))
        elif node is None or state == "known":
            changed = False
        elif state == "drained":
            changed = drain(name, node, offered, module.params, module.check_mode)
            owners = node["spec"].get("unschedulable", False) and not cordoned
            cordoned = cordoned or not (owners or module.check_mode)
        else:
            changed = uncordon(name, node, module.check_mode)
            cordoned = cordoned and module.check_mode
    except (KubectlError, NotOfferedError, OSError) as error:
        module.fail_json(msg="node {}: {}".format(name, error))
    module.exit_json(
        changed=changed,
        known=known,
        nodes=nodes,
        offers=offered,
        capacity=extended(node, "capacity") if node else {},
        cordoned=cordoned,
    )


if __name__ == "__main__":
    main()
