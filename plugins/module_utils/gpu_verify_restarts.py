# SPDX-License-Identifier: Apache-2.0
"""Checks of pods with the GPU across a restart of the kubelet, and across a reboot of the board.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import time

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_claims as claims
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_diagnosis import (
    PLUGIN_NAMESPACE,
    plugin_pod,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_node import WORDS
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import (
    COMPUTE,
    COMPUTED,
    Namespace,
    finished,
    holder,
    holders,
    last_words,
    running,
    why,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed, Record
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_sharing import hand_over
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    KubectlError,
    WatchTimeoutError,
    is_true,
    run,
    wait_until,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_quantities import integer

POLL_SECONDS = 1.0
# The message of kubectl if the program started and failed.
EXITED = "command terminated with exit code"
# The log lines of a successful registration.
REGISTERED = {"device-plugin": "registered {}", claims.DRA: "registered with the kubelet"}
SURVIVOR = "survivor"


def identity(item: Data) -> Data:
    """Id and number of restarts of a pod's container, which change if it restarts."""
    status = item["status"]["containerStatuses"][0]
    return {"container": status.get("containerID"), "restarts": status.get("restartCount")}


def registrations(params: Data) -> Data:
    """The plugin's container on the node, and the number of successful registrations in its log."""
    item = plugin_pod(params["node"])
    if item is None:
        raise CheckFailed("no pod that serves the GPU is on {}".format(params["node"]))
    log = run("logs", "--namespace=" + PLUGIN_NAMESPACE, item["metadata"]["name"])
    said = REGISTERED[params["api"]].format(params["resource"])
    return dict(identity(item), count=log.count(said))


def before_restart(namespace: Namespace, record: Record) -> Data:
    """Start a pod with the GPU before the kubelet restarts. Returns its identity."""
    name = "holder"
    namespace.start(record, holder(name, namespace.params))
    namespace.computed(record, name)
    return dict(identity(namespace.get(name)), registrations=registrations(namespace.params))


def compute_again(namespace: Namespace, record: Record, name: str) -> None:
    """Compute in a new process in the running pod: it has to open the device nodes."""
    deadline = time.monotonic() + namespace.params["timeout"]
    while True:
        try:
            text = namespace.run(name, *COMPUTE)
        except KubectlError as error:
            if EXITED in str(error) or time.monotonic() > deadline:
                words = last_words(str(error).partition(EXITED)[0])
                raise CheckFailed("{} cannot compute on the GPU any more: {}".format(name, words)) from error
            time.sleep(POLL_SECONDS)  # a kubelet that has just started may not be reachable
        else:
            said = COMPUTED.search(text)
            if said is None:
                raise CheckFailed("{} cannot compute on the GPU any more: {}".format(name, last_words(text)))
            record.prove("a new process in it, after the restart: {}".format(said.group(0)))
            return


def wait_registered(namespace: Namespace, before: Data, record: Record) -> None:
    """Wait until the plugin has registered with the new kubelet and the node offers its GPUs again."""
    params = namespace.params
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


def wait_offered(namespace: Namespace, count: int, record: Record) -> None:
    """Wait until the node is Ready and offers `count` GPUs."""
    params = namespace.params

    def offers(node: Data) -> bool:
        if not is_true(node, "Ready"):
            return False
        if params["api"] == claims.DRA:
            return len(claims.devices(params["node"])) == count
        return integer((node["status"].get("allocatable") or {}).get(params["resource"], "0")) == count

    try:
        wait_until(
            offers, "{} {}".format(count, params["resource"]), params["timeout"], "node", params["node"]
        )
    except WatchTimeoutError as timeout:
        raise CheckFailed(
            "after the restart the node does not offer it again: {}".format(timeout)
        ) from timeout
    record.note("node {} offers {} {}".format(params["node"], count, params["resource"]))


def restarted(namespace: Namespace, gpu: Data, before: Data, record: Record) -> None:
    """After the kubelet's restart: the holder runs on, and only the other GPUs are free."""
    params, name = namespace.params, "holder"
    wait_registered(namespace, before["registrations"], record)
    wait_offered(namespace, gpu["allocatable"], record)
    item = namespace.wait(name, running, "{} running on".format(name))
    if not is_true(item, "Ready"):
        raise CheckFailed("the pod with the GPU does not run any more: {}".format(why(item)))
    if identity(item) != {key: before[key] for key in ("container", "restarts")}:
        raise CheckFailed("the pod with the GPU was restarted")
    record.prove("the pod with the GPU is the same container, {}".format(before["container"]))
    compute_again(namespace, record, name)
    found = holders(params)
    if len(found) != 1:
        raise CheckFailed("expected one pod with the GPU, found {}".format(", ".join(found)))
    record.prove("allocatable is {} again, allocated to {}".format(gpu["allocatable"], found[0]))
    # A request for all of them stays Pending if the new kubelet and the scheduler know of the holder.
    waiter = "waiter"
    namespace.start(record, holder(waiter, params, limit=gpu["allocatable"]))
    namespace.wait_refused(record, waiter, name)
    if gpu["replicas"] == 1:
        hand_over(namespace, record, [name], waiter)
    else:
        namespace.start(record, holder("sharer", params))
        namespace.computed(record, "sharer")
    record.prove("the restarted kubelet allocates the GPU: another pod runs with it")


def before_reboot(namespace: Namespace, record: Record) -> Data:
    """Start a pod with the GPU and without a controller, before the board reboots. Returns its identity.

    The kubelet admits the pod again after the boot. If it refuses the pod, no controller makes another one.
    """
    manifest = holder(SURVIVOR, namespace.params)
    manifest["spec"]["restartPolicy"] = "Always"
    namespace.start(record, manifest)
    namespace.computed(record, SURVIVOR)
    return identity(namespace.get(SURVIVOR))


def rebooted(namespace: Namespace, gpu: Data, before: Data, record: Record) -> None:
    """After the reboot: the kubelet has admitted the pod, and the pod computes again."""

    def is_back(item: Data) -> bool:
        return finished(item) or (is_true(item, "Ready") and identity(item)["restarts"] > before["restarts"])

    item = namespace.wait(SURVIVOR, is_back, "{} running again".format(SURVIVOR))
    if finished(item):
        raise CheckFailed("the pod with the GPU did not survive the reboot: {}".format(why(item)))
    started = item["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    record.prove("the kubelet refused nothing: the same pod runs again, since {}".format(started))
    namespace.computed(record, SURVIVOR)
    record.prove("it computes on the GPU again")
    wait_offered(namespace, gpu["allocatable"], record)
