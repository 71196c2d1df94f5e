# SPDX-License-Identifier: Apache-2.0
"""Checks of access to the GPU: a pod that requests it, a user who is not root, a pod without a request.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import re
from typing import Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_device_query import (
    SIMULATED,
    complaint,
    parse,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import (
    COMPUTE,
    COMPUTED,
    DEVICE_QUERY,
    Namespace,
    gpu_nodes,
    pod,
    uninvited_pod,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import (
    CheckFailed,
    Record,
    Skipped,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import Data

USER = 1000  # the first user of a Jetson, and of most images
READY = "ready"
# Programs for the plugin's image, which has no shell. This one lists the device nodes.
NODES = """
import os, stat

def nodes():
    for directory, _, names in os.walk("/dev"):
        for path in (os.path.join(directory, name) for name in names):
            if stat.S_ISCHR(os.lstat(path).st_mode):
                yield path
"""
LIST_NODES = ("python3.11", "-c", NODES + "print(*nodes(), '{}', sep='\\n')".format(READY))
# Prints its user and groups, and each device node with owner, group, mode and the error of opening it. Then
# becomes the program in its arguments.
AS_USER = (
    "python3.11",
    "-c",
    NODES
    + """
import sys
print("user {} with groups {}".format(os.getuid(), " ".join(map(str, sorted(os.getgroups())))))
for path in nodes():
    node, error = os.stat(path), ""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as failure:
        error = failure.strerror
    print("node {} {}:{} {:o} {}".format(path, node.st_uid, node.st_gid, node.st_mode & 0o7777, error))
sys.stdout.flush()
os.execvp(sys.argv[1], sys.argv[1:])
""",
)
NODE = re.compile(r"^node (/dev/\S+) ([0-9]+):([0-9]+) ([0-7]{1,4}) (.*)$", re.MULTILINE)
# What the kernel says where a container's device rules, and not owner, group and mode, refuse a node.
REFUSED = "Operation not permitted"
# The same where owner, group and mode refuse it.
DENIED = "Permission denied"
GROUP_ACCESS = 0o060  # read and write
Node = Tuple[str, str, str, str, str]  # path, owner, group, mode, error
# Nodes that every container has (OCI runtime-spec, config-linux.md, "Default Devices").
OF_EVERY_CONTAINER = re.compile(r"^/dev/(null|zero|full|u?random|tty|console|ptmx|pts/.*)$")
# On every L4T the GPU's memory is the board's; CUDA reports less: the driver reserves a part.
MEMORY_TOLERANCE = 0.1


def run_query(namespace: Namespace, record: Record, manifest: Data) -> Tuple[Data, str]:
    """Run deviceQuery in a pod until it ends; return (parsed output, output)."""
    name = manifest["metadata"]["name"]
    namespace.start(record, manifest)
    phase = namespace.wait_end(record, name)
    text = namespace.log(name)
    return dict(parse(text), phase=phase, output=text.splitlines()), text


def judge(query: Data, text: str) -> None:
    """Raise CheckFailed unless deviceQuery has passed."""
    if query["phase"] != "Succeeded" or query["result"] != "PASS" or not query["detected"]:
        raise CheckFailed("deviceQuery did not pass (pod {phase}): {}".format(complaint(text), **query))


def device_query(namespace: Namespace, gpu: Data, record: Record) -> None:
    """A pod that requests the GPU runs deviceQuery; writes `device_query` into `gpu`."""
    own = namespace.params["own_image"]
    params = dict(namespace.params, image=own or namespace.params["image"])
    command = params["own_command"] if own else DEVICE_QUERY
    query, text = run_query(namespace, record, pod("devicequery", params, command))
    gpu["device_query"] = query
    judge(query, text)
    record.prove(
        '"{device}", compute capability {compute_capability}, {multiprocessors} multiprocessors, '
        "Result = {result}".format(**query)
    )
    record.prove("image {}".format(params["image"]))


def cuda_kernel(namespace: Namespace, gpu: Data, record: Record) -> None:
    """A pod of the plugin's image runs a CUDA kernel and checks its result; writes `kernel` into `gpu`."""
    name = "kernel"
    namespace.start(record, pod(name, namespace.params, COMPUTE))
    said = namespace.wait_output(record, name, COMPUTED, "compute on the GPU")
    gpu["kernel"] = {"said": said.group(0), "simulated": SIMULATED in said.string}
    record.prove(said.group(0))
    if gpu["kernel"]["simulated"]:
        record.prove("SIMULATED: no GPU ran this kernel")


def non_root(namespace: Namespace, record: Record) -> None:
    """deviceQuery passes for a user who is only in the group video."""
    group = namespace.params["video_group"]
    if group is None:
        raise Skipped("the board has no group video")
    security = {"runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": True, "supplementalGroups": [group]}
    command = [*AS_USER, *DEVICE_QUERY]
    query, text = run_query(namespace, record, pod("nonroot", namespace.params, command, security=security))
    nodes = [found for found in NODE.findall(text) if not OF_EVERY_CONTAINER.match(found[0])]
    closed = [found for found in nodes if found[4]]
    record.prove("opens {} of {} device nodes".format(len(nodes) - len(closed), len(nodes)))
    for found in closed:
        record.prove("closed to this user: {} (owner {}, group {}, mode {}): {}".format(*found))
    try:
        judge(query, text)
    except CheckFailed as failed:
        raise CheckFailed(str(failed), opened(closed, group)) from failed
    user = next((line for line in text.splitlines() if line.startswith("user ")), "?")
    record.prove("deviceQuery passes as {}".format(user))
    refused = [found[0] for found in closed if found[2] == str(group) and found[4] == REFUSED]
    if refused:
        raise CheckFailed(
            "the container's device rules refuse nodes of the group video: {}".format(", ".join(refused))
        )


def opened(closed: Sequence[Node], group: int) -> str:
    """How a user of the group video, number `group`, gets the closed nodes; '' for none."""
    by_owner = [node for node in closed if node[4] == DENIED]
    groups = sorted(
        {node[2] for node in by_owner if node[2] not in ("0", str(group)) and open_to_group(node)}
    )
    others = [node for node in by_owner if node[2] not in groups]
    parts = []
    if groups:
        parts.append(
            "{} belong to the group {}: list it in the pod, `supplementalGroups: [{}]`.".format(
                ", ".join(node[0] for node in by_owner if node[2] in groups),
                " and the group ".join(groups),
                ", ".join([str(group), *groups]),
            )
        )
    if others:
        parts.append(
            "{} are for {} alone: give them to the group {} (video) with the mode 660, as L4T's udev rules "
            "do (99-tegra-devices.rules), and run `sudo udevadm trigger` on the board.".format(
                ", ".join("{} (mode {})".format(node[0], node[3]) for node in others),
                " and ".join(sorted({"{}:{}".format(node[1], node[2]) for node in others})),
                group,
            )
        )
    return " ".join(parts)


def open_to_group(node: Node) -> bool:
    """Can the node's group read and write?"""
    return int(node[3], 8) & GROUP_ACCESS == GROUP_ACCESS


def uninvited(namespace: Namespace, record: Record) -> None:
    """List the GPU's device nodes in a pod without a request: none are allowed in strict mode."""
    name = "uninvited"
    namespace.start(record, uninvited_pod(name, namespace.params, LIST_NODES))
    phase = namespace.wait_end(record, name)
    text = namespace.log(name)
    if READY not in text.splitlines():
        raise CheckFailed("the pod without a request did not list its devices (it {})".format(phase))
    nodes = gpu_nodes(text)
    who = "a pod with NVIDIA_VISIBLE_DEVICES=all and without a request"
    if not nodes:
        record.prove("{} has no GPU device node".format(who))
        return
    record.prove("{} has {} GPU device nodes: {}".format(who, len(nodes), ", ".join(nodes)))
    if namespace.params["strict"]:
        raise CheckFailed(
            "a pod that did not request {} got {}: strict mode is not in effect on this board".format(
                namespace.params["resource"], ", ".join(nodes)
            )
        )
    record.prove("nvidia_docker_strict is off: any image can use the GPU")


def unified_memory(params: Data, gpu: Data, record: Record) -> None:
    """CUDA reports that CPU and GPU share memory, and the board's size of memory."""
    query = gpu["device_query"]
    if query["integrated"] is None or query["memory_bytes"] is None:
        raise Skipped("deviceQuery does not report the memory")
    seen, board = query["memory_bytes"], params["memory_bytes"]
    record.prove("integrated GPU sharing host memory: {}".format("yes" if query["integrated"] else "no"))
    record.prove("CUDA sees {} MiB, the board has {} MiB".format(seen >> 20, board >> 20))
    if not query["integrated"]:
        raise CheckFailed("CUDA reports no integrated GPU: does the board have another GPU?")
    if gpu["limited"] and seen < board:
        record.prove("a pod sees only its own share of the memory")
    elif abs(seen - board) > MEMORY_TOLERANCE * board:
        raise CheckFailed("CUDA sees {} MiB of the board's {} MiB".format(seen >> 20, board >> 20))
