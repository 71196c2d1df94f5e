# SPDX-License-Identifier: Apache-2.0
"""Checks of the number of pods with the GPU, of their memory limits, and of a kubelet's restart.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import re
import time

from ansible.module_utils import gpu_verify_claims as claims
from ansible.module_utils.gpu_verify_diagnosis import PLUGIN_NAMESPACE, plugin_pod
from ansible.module_utils.gpu_verify_node import WORDS
from ansible.module_utils.gpu_verify_pods import (
    COMPUTE,
    COMPUTED,
    gpu_nodes,
    holder,
    holders,
    last_words,
    none_left,
    pod,
    running,
    why,
)
from ansible.module_utils.gpu_verify_runner import CheckFailed, Skipped
from ansible.module_utils.k3s_kubectl import KubectlError, WatchTimeoutError, is_true, run, wait_until

POLL_SECONDS = 1.0
# What `sharing` has proven of an exclusive GPU, and of a shared one.
CONCURRENCY = "{waiter} was Pending ({none_left}) while {holders} ran"
TIME_SLICING = "{holders} ran at the same instant, {waiter} was Pending ({none_left})"
# The message of kubectl if the program started and failed.
EXITED = "command terminated with exit code"
# The log lines of a successful registration.
REGISTERED = {"device-plugin": "registered {}", claims.DRA: "registered with the kubelet"}
# How the plugin's image allocates memory by CUDA (its commands/cuda_programs.py), and what it says then.
ALLOCATE = ("python3.11", "-m", "tegra_device_plugin", "allocate")
ALLOCATED = re.compile(r"^allocated (\d+) of \d+ MiB.*$", re.MULTILINE)
LIMITED_PODS = 2
# Of its share that each pod must get: on a board CUDA's contexts take something of it.
ENOUGH_PERCENT = 75
# The program allocates in steps of 16 MiB (STEP_MIB, cuda/program.py): of less than four, one is too much.
LEAST_MIB = 64
GREEDY, NEIGHBOUR = "greedy", "neighbour"


def see_nodes(text, gpu, record, name):
    """A holder's output names GPU device nodes; writes `device_nodes` into `gpu`."""
    nodes = gpu_nodes(text)
    if not nodes:
        raise CheckFailed(
            "{} runs, but no GPU device node is inside it: is nvidia the default runtime?".format(name)
        )
    gpu["device_nodes"] = nodes
    record.prove("{} has {} GPU device nodes, among them {}".format(name, len(nodes), nodes[-1]))


def hold_all(bench, gpu, record):
    """Fill the node with holders; one pod more must wait. Returns (holders, waiter), by name."""
    count = gpu["allocatable"] // bench.params["share"]
    names = ["pod{}".format(number) for number in range(1, count + 1)]
    waiter = "pod{}".format(count + 1)
    for name in names:
        bench.start(record, holder(name, bench.params))
    said = [bench.computed(record, name) for name in names]
    see_nodes(said[0], gpu, record, names[0])
    bench.start(record, holder(waiter, bench.params))
    bench.wait_refused(record, waiter, ", ".join(names))
    # Only overlap proves sharing, and exclusiveness: all holders must be there now.
    for name in names:
        if not is_true(bench.get(name), "Ready"):
            raise CheckFailed("{} ended before {} was seen waiting".format(name, waiter))
    return names, waiter


def hand_over(bench, record, names, waiter):
    """A holder ends and the waiter runs; then all end, so that the namespace is deleted fast."""
    bench.end(record, names[0])
    bench.computed(record, waiter)
    record.prove("{} computes on the GPU since {} has ended".format(waiter, names[0]))
    for name in [*names[1:], waiter]:
        bench.end(record, name)


def sharing(bench, gpu, record, proof):
    """As many pods as GPUs run together, one more waits until one of them ends; `proof` is the evidence."""
    names, waiter = hold_all(bench, gpu, record)
    words = none_left(bench.params)
    record.prove(proof.format(holders=", ".join(names), waiter=waiter, none_left=words))
    hand_over(bench, record, names, waiter)


def identity(item):
    """What a restart of a pod's container would change: its id and the count of restarts."""
    status = item["status"]["containerStatuses"][0]
    return {"container": status.get("containerID"), "restarts": status.get("restartCount")}


def registrations(params):
    """The plugin's container on the node, and how often it says that a kubelet took its registration."""
    item = plugin_pod(params["node"])
    if item is None:
        raise CheckFailed("no pod that serves the GPU is on {}".format(params["node"]))
    log = run("logs", "--namespace=" + PLUGIN_NAMESPACE, item["metadata"]["name"])
    said = REGISTERED[params["api"]].format(params["resource"])
    return dict(identity(item), count=log.count(said))


def before_restart(bench, record):
    """Start a pod with the GPU before the kubelet restarts. Returns its identity."""
    name = "holder"
    bench.start(record, holder(name, bench.params))
    bench.computed(record, name)
    return dict(identity(bench.get(name)), registrations=registrations(bench.params))


def compute_again(bench, record, name):
    """Compute in a new process of the running pod, which has to open the device nodes."""
    deadline = time.monotonic() + bench.params["timeout"]
    while True:
        try:
            said = COMPUTED.search(bench.run(name, *COMPUTE)).group(0)
        except KubectlError as error:
            if EXITED in str(error) or time.monotonic() > deadline:
                words = last_words(str(error).partition(EXITED)[0])
                raise CheckFailed("{} cannot compute on the GPU any more: {}".format(name, words)) from error
            time.sleep(POLL_SECONDS)  # the way to a kubelet that has just started may not be there yet
        else:
            record.prove("a new process in it, after the restart: {}".format(said))
            return


def wait_registered(bench, before, record):
    """Wait until the plugin has registered with the new kubelet and the node offers its GPUs again."""
    params = bench.params
    deadline = time.monotonic() + params["timeout"]
    said = "no answer"
    while time.monotonic() < deadline:
        try:
            now = registrations(params)
            # Another container has its own log.
            same = now["container"] == before["container"]
            if now["count"] > (before["count"] if same else 0):
                record.note("{} has registered again".format(WORDS[params["api"]]))
                return
            said = "no new registration in its log"
        except (CheckFailed, KubectlError) as error:  # an API server that restarts as well, or its kubelet
            said = str(error)
        time.sleep(POLL_SECONDS)
    raise CheckFailed(
        "{} did not register again within {} s: {}".format(WORDS[params["api"]], params["timeout"], said)
    )


def wait_offered(bench, count, record):
    """Wait until the node is Ready and offers `count` GPUs."""
    params = bench.params

    def offers(node):
        if not is_true(node, "Ready"):
            return False
        if params["api"] == claims.DRA:
            return len(claims.devices(params["node"])) == count
        return int((node["status"].get("allocatable") or {}).get(params["resource"], 0)) == count

    try:
        wait_until(
            offers, "{} {}".format(count, params["resource"]), params["timeout"], "node", params["node"]
        )
    except WatchTimeoutError as timeout:
        raise CheckFailed(
            "after the restart the node does not offer it again: {}".format(timeout)
        ) from timeout
    record.note("node {} offers {} {}".format(params["node"], count, params["resource"]))


def restarted(bench, gpu, before, record):
    """After the kubelet's restart: the holder has not noticed, and the rest of the GPUs is all there is."""
    params, name = bench.params, "holder"
    wait_registered(bench, before["registrations"], record)
    wait_offered(bench, gpu["allocatable"], record)
    item = bench.wait(name, running, "{} running on".format(name))
    if not is_true(item, "Ready"):
        raise CheckFailed("the pod with the GPU does not run any more: {}".format(why(item)))
    if identity(item) != {key: before[key] for key in ("container", "restarts")}:
        raise CheckFailed("the pod with the GPU was restarted")
    record.prove("the pod with the GPU is the same container, {}".format(before["container"]))
    compute_again(bench, record, name)
    found = holders(params)
    if len(found) != 1:
        raise CheckFailed("expected one pod with the GPU, found {}".format(", ".join(found)))
    record.prove("allocatable is {} again, allocated to {}".format(gpu["allocatable"], found[0]))
    # Asking for all of them tells whether the new kubelet and the scheduler know of the holder.
    waiter = "waiter"
    bench.start(record, holder(waiter, params, limit=gpu["allocatable"]))
    bench.wait_refused(record, waiter, name)
    if gpu["replicas"] == 1:
        hand_over(bench, record, [name], waiter)
    else:
        bench.start(record, holder("sharer", params))
        bench.computed(record, "sharer")
    record.prove("the restarted kubelet gives the GPU out: a further pod runs with it")


def allocate(bench, record, name, mib):
    """Allocate `mib` MiB in a pod with a share; return (allocated MiB, output)."""
    bench.start(record, pod(name, bench.params, [*ALLOCATE, str(mib), "--hold"]))
    said = bench.heard(record, name, ALLOCATED, "allocate")
    return int(said.group(1)), said.group(0)


def share_of_memory(gpu):
    """Return what a pod's share of memory is, and what CUDA can have of it, in MiB."""
    share = gpu["memory_bytes"] * (gpu["devices"] // LIMITED_PODS) // gpu["devices"] >> 20
    return share, share - (gpu["context_bytes"] >> 20)


def check_limit(got, share, usable):
    """Raise CheckFailed unless the greedy one was out of memory where its share ends, in MiB."""
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


def limits(bench, gpu, record):
    """A pod that wants more than its share is out of memory; its neighbour has his, before and after."""
    share, usable = share_of_memory(gpu)
    if gpu["devices"] < LIMITED_PODS or usable < LEAST_MIB:
        raise Skipped(
            "it takes {} pods with {} MiB or more each, and half of the offered memory is {} MiB".format(
                LIMITED_PODS, LEAST_MIB, max(usable, 0)
            )
        )
    within = usable * ENOUGH_PERCENT // 100
    # The neighbour first: what greed does to those who are there already is the question.
    kept, said = allocate(bench, record, NEIGHBOUR, within)
    if kept < within:
        raise CheckFailed(
            "{} got {} MiB, expected the requested {} MiB of its share of {} MiB: other "
            "programs use the rest".format(NEIGHBOUR, kept, within, share)
        )
    record.prove("{}: {}".format(NEIGHBOUR, said))
    got, said = allocate(bench, record, GREEDY, 2 * share)
    record.prove("{}, whose share is {} MiB: {}".format(GREEDY, share, said))
    check_limit(got, share, usable)
    item = bench.get(NEIGHBOUR)
    if not item or not is_true(item, "Ready"):
        raise CheckFailed(
            "{} does not run any more since {} was out of memory, expected it to notice nothing: {}".format(
                NEIGHBOUR, GREEDY, why(item or None)
            )
        )
    record.prove("{} still runs".format(NEIGHBOUR))
    bench.clear()
