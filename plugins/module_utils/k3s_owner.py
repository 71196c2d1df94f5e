# SPDX-License-Identifier: Apache-2.0
"""Which board of the inventory a node of the cluster belongs to. The board's hostname has no influence.

The role records the board in the Secret with which K3s keeps the name of a node. Only servers can write it:
a kubelet writes its own Node, and with K3s' flannel an agent may write the status of every Node.

Runs on the board: Python 3.6 compatible.
"""

from typing import Dict, Iterable, List, Optional, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    KubectlError,
    by_kubeconfig,
    get,
    listed,
    run,
)

# Annotation of the Secret.
RECORD = "jetson-k3s.github.io/board"
NAMESPACE = "--namespace=kube-system"
# K3s' name of the Secret (pkg/nodepassword), and a line for each with the record, which may be empty.
PASSWORD = ".node-password.k3s"  # noqa: S105 - a name
ANNOTATION = "{.metadata.annotations.jetson-k3s\\.github\\.io/board}"
TEMPLATE = '{range .items[*]}{.metadata.name}{"\\t"}' + ANNOTATION + '{"\\n"}{end}'
REFUSAL = (
    "the cluster and the inventory do not say that it is the node of {board} (they say: {other}), and what "
    "{board} calls itself does not count. Nothing was changed. "
)
BY_RECORD = (
    "If it is its node, type on a server: "
    "sudo k3s kubectl -n kube-system annotate secret {secret} jetson-k3s.github.io/board={board} --overwrite"
)
BY_ADDRESS = "If it is its node, set jetson_k3s_address of {board} to the address that the node {name} has"


def owner(name: str, record: str, addresses: Iterable[str], boards: Dict[str, List[str]]) -> str:
    """The board of a node, '' without a board, or if the board is not certain.

    `boards` are the addresses that the inventory gives each of its boards. A record of a board that is in the
    inventory decides. Otherwise the board has the name or an address of the node.
    """
    if record in boards:
        return record
    named = [board for board in boards if board.lower() == name]
    reached = [board for board in boards if set(addresses) & set(boards[board])]
    found = named or reached
    return found[0] if len(found) == 1 else ""


def addresses_of(node: Optional[Data]) -> List[str]:
    """Addresses that a Node has in its status."""
    entries = ((node or {}).get("status") or {}).get("addresses") or []
    return [entry["address"] for entry in entries if entry["type"] != "Hostname"]


def records() -> Dict[str, str]:
    """The records of all nodes of the cluster, by node; none with a kubeconfig, which may read no Secrets."""
    if by_kubeconfig():
        return {}
    lines = run("get", "secrets", NAMESPACE, "--output=jsonpath=" + TEMPLATE).splitlines()
    pairs = (line.partition("\t") for line in lines)
    return {name[: -len(PASSWORD)]: record for name, _, record in pairs if name.endswith(PASSWORD)}


def recorded(secret: Optional[Data]) -> str:
    """The record in a Secret, '' without one."""
    record: str = ((secret or {}).get("metadata") or {}).get("annotations", {}).get(RECORD, "")
    return record


def password(name: str) -> Optional[Data]:
    """The Secret that keeps the name of a node; None without one, or with a kubeconfig."""
    return None if by_kubeconfig() else get(NAMESPACE, "secret", name + PASSWORD)


def node_and_password(name: str) -> Tuple[Optional[Data], Optional[Data]]:
    """The node and that Secret, by one call: each starts a kubectl."""
    if by_kubeconfig():
        return get("node", name), None
    items = {one["kind"]: one for one in listed(NAMESPACE, "node/" + name, "secret/" + name + PASSWORD)}
    return items.get("Node"), items.get("Secret")


def check_owner(node: Optional[Data], secret: Optional[Data], params: Data, new: bool = False) -> None:
    """KubectlError if the node, or its name, is not of the board.

    `params` has its `name`, the `board` and all `boards`. With `new` a node without an owner is of the board:
    it was not in the cluster before this run.
    """
    if node is None and secret is None:
        return
    name, board = params["name"], params["board"]
    found = owner(name, recorded(secret), addresses_of(node), params["boards"])
    if found != board and not (new and not found and not recorded(secret)):
        fix = BY_ADDRESS if by_kubeconfig() else BY_RECORD
        raise KubectlError(
            (REFUSAL + fix).format(board=board, other=found or "none", name=name, secret=name + PASSWORD)
        )


def record_arguments(secret: Optional[Data], params: Data) -> List[str]:
    """Arguments of `kubectl annotate` that record the board; empty if it is recorded, or cannot be."""
    if secret is None or recorded(secret) == params["board"]:
        return []
    return ["secret", params["name"] + PASSWORD, "{}={}".format(RECORD, params["board"])]
