# SPDX-License-Identifier: Apache-2.0
"""Checks of the number of pods with the GPU, and of their memory limits.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import re
from typing import List, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import (
    Namespace,
    gpu_nodes,
    holder,
    none_left,
    pod,
    why,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import (
    CheckFailed,
    Record,
    Skipped,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import Data, is_true

# The evidence of `sharing` for an exclusive GPU, and for a shared one.
CONCURRENCY = "{waiter} was Pending ({none_left}) while {holders} ran"
TIME_SLICING = "{holders} ran at the same instant, {waiter} was Pending ({none_left})"
# How the plugin's image allocates memory by CUDA (its commands/cuda_programs.py), and its output.
ALLOCATE = ("python3.11", "-m", "tegra_device_plugin", "allocate")
ALLOCATED = re.compile(r"^allocated (\d+) of \d+ MiB.*$", re.MULTILINE)
LIMITED_PODS = 2
# Percentage of its share that each pod must get: on a board, CUDA's contexts use a part.
ENOUGH_PERCENT = 75
# The program allocates in steps of 16 MiB (STEP_MIB, cuda/program.py): of less than four, one is too much.
LEAST_MIB = 64
GREEDY, NEIGHBOUR = "greedy", "neighbour"


def check_nodes(text: str, gpu: Data, record: Record, name: str) -> None:
    """A holder's output names GPU device nodes; writes `device_nodes` into `gpu`."""
    nodes = gpu_nodes(text)
    if not nodes:
        raise CheckFailed(
            "{} runs, but no GPU device node is inside it: is nvidia the default runtime?".format(name)
        )
    gpu["device_nodes"] = nodes
    record.prove("{} has {} GPU device nodes, among them {}".format(name, len(nodes), nodes[-1]))


def allocate_all(namespace: Namespace, gpu: Data, record: Record) -> Tuple[List[str], str]:
    """Start holders until all GPUs are allocated; another pod must wait. Returns their names."""
    count = gpu["allocatable"] // namespace.params["share"]
    names = ["pod{}".format(number) for number in range(1, count + 1)]
    waiter = "pod{}".format(count + 1)
    for name in names:
        namespace.start(record, holder(name, namespace.params))
    said = [namespace.computed(record, name) for name in names]
    check_nodes(said[0], gpu, record, names[0])
    namespace.start(record, holder(waiter, namespace.params))
    namespace.wait_refused(record, waiter, ", ".join(names))
    # Pods share the GPU only if they run at the same time: all holders must be Ready now.
    for name in names:
        if not is_true(namespace.get(name), "Ready"):
            raise CheckFailed("{} ended before {} was seen waiting".format(name, waiter))
    return names, waiter


def hand_over(namespace: Namespace, record: Record, names: Sequence[str], waiter: str) -> None:
    """A holder ends and the waiter runs; then all end, so that the namespace is deleted fast."""
    namespace.end(record, names[0])
    namespace.computed(record, waiter)
    record.prove("{} computes on the GPU since {} has ended".format(waiter, names[0]))
    for name in [*names[1:], waiter]:
        namespace.end(record, name)


def sharing(namespace: Namespace, gpu: Data, record: Record, proof: str) -> None:
    """As many pods as GPUs run together, one more waits until one of them ends; `proof` is the evidence."""
    names, waiter = allocate_all(namespace, gpu, record)
    words = none_left(namespace.params)
    record.prove(proof.format(holders=", ".join(names), waiter=waiter, none_left=words))
    hand_over(namespace, record, names, waiter)


def allocate(namespace: Namespace, record: Record, name: str, mib: int) -> Tuple[int, str]:
    """Allocate `mib` MiB in a pod with a share; return (allocated MiB, output)."""
    namespace.start(record, pod(name, namespace.params, [*ALLOCATE, str(mib), "--hold"]))
    said = namespace.wait_output(record, name, ALLOCATED, "allocate")
    return int(said.group(1)), said.group(0)


def share_of_memory(gpu: Data) -> Tuple[int, int]:
    """Return a pod's share of memory, and the part that CUDA can allocate, in MiB."""
    share = gpu["memory_bytes"] * (gpu["devices"] // LIMITED_PODS) // gpu["devices"] >> 20
    return share, share - (gpu["context_bytes"] >> 20)


def check_limit(got: int, share: int, usable: int) -> None:
    """Raise CheckFailed unless the greedy pod was out of memory at its share, in MiB."""
    if got > share:
        raise CheckFailed(
            "{} got {} MiB, expected at most its share of {} MiB: nothing limits it".format(
                GREEDY, got, share
            )
        )
    if got * 100 < usable * ENOUGH_PERCENT:
        raise CheckFailed(
            "{} was out of memory at {} MiB, expected about its share of {} MiB: other "
            "programs use the rest".format(GREEDY, got, share)
        )


def limits(namespace: Namespace, gpu: Data, record: Record) -> None:
    """A pod fails at its GPU memory limit; its neighbour keeps its share before and after."""
    share, usable = share_of_memory(gpu)
    if gpu["devices"] < LIMITED_PODS or usable < LEAST_MIB:
        raise Skipped(
            "the check needs {} pods of {} MiB or more each, and half of the offered memory is {} MiB".format(
                LIMITED_PODS, LEAST_MIB, max(usable, 0)
            )
        )
    within = usable * ENOUGH_PERCENT // 100
    # The neighbour first: the greedy pod must not affect pods that run already.
    kept, said = allocate(namespace, record, NEIGHBOUR, within)
    if kept < within:
        raise CheckFailed(
            "{} got {} MiB, expected the requested {} MiB of its share of {} MiB: other "
            "programs use the rest".format(NEIGHBOUR, kept, within, share)
        )
    record.prove("{}: {}".format(NEIGHBOUR, said))
    got, said = allocate(namespace, record, GREEDY, 2 * share)
    record.prove("{}, whose share is {} MiB: {}".format(GREEDY, share, said))
    check_limit(got, share, usable)
    item = namespace.get(NEIGHBOUR)
    if not item or not is_true(item, "Ready"):
        raise CheckFailed(
            "{} does not run any more since {} was out of memory, expected no effect on it: {}".format(
                NEIGHBOUR, GREEDY, why(item or None)
            )
        )
    record.prove("{} still runs".format(NEIGHBOUR))
    namespace.clear()
