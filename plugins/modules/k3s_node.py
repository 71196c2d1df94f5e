#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Wait until a node is Ready, keep its labels, renew what serves it, wait for what it offers.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import functools
import time
from typing import List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    CORDONED,
    KUBECONFIG,
    Data,
    KubectlError,
    WatchTimeoutError,
    get,
    has_kubectl,
    is_true,
    listed,
    run,
    selects,
    use,
    wait_until,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_offers import (
    NotOfferedError,
    lacking,
    wait_offered,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_owner import (
    NAMESPACE,
    check_owner,
    node_and_password,
    password,
    record_arguments,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

LOG_LINES = 15
# Label of a DaemonSet's pods and of its ControllerRevisions, of which each template has one (apps/v1).
HASH = "controller-revision-hash"
# Interval of checks whether pods have ended.
POLL_SECONDS = 1
# Why a container waits whose image is not there (pkg/kubelet/images/types.go).
WITHOUT_IMAGE = ("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff")

DOCUMENTATION = r"""
module: k3s_node
short_description: A Ready node with its labels and resources
description:
  - Waits for the node, sets labels, renews pods, and waits for what the node must offer.
  - Records of which board the node is. Refused for a node that is not known as that of the board.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  name: {required: true, description: The node.}
  board: {required: true, description: 'The board in the inventory whose node it is.'}
  boards:
    description: The addresses that the inventory gives each of its boards (filter C(k3s_boards)).
    type: dict
    required: true
  new: {type: bool, default: false, description: 'Whether the cluster had no such node before this run.'}
  labels: {type: dict, default: {}, description: 'Labels that it must have, or with null must not have.'}
  absent_taints:
    description: Taints that it must not have, as C(KEY:EFFECT).
    type: list
    elements: str
    default: []
  offers: {type: dict, default: {}, description: 'Extended resources and devices of drivers to wait for.'}
  provider: {description: Label selector of the pods in kube-system that serve them.}
  renew:
    description:
      - Have those of the provider's DaemonSets that run on a node with its labels run their present template.
      - A pod of an older template is deleted. The new one must be Ready before the offers are waited for.
      - Where labels are about to change, pods whose DaemonSet is gone, or does not run on a node with the new
        labels, have to be gone first. Until they are, the node does not have the labels of either.
    type: bool
    default: false
  timeout: {type: int, default: 180, description: Seconds to wait.}
"""

RETURN = r"""
cordoned: {type: bool, description: Whether an interrupted run of ours has left the node cordoned.}
"""


def label_arguments(current: Data, wanted: Data) -> List[str]:
    """Arguments of `kubectl label` that are needed to get from the current labels to the wanted ones."""
    return [
        "{}-".format(key) if value is None else "{}={}".format(key, value)
        for key, value in sorted(wanted.items())
        if current.get(key) != (None if value is None else str(value))
    ]


def surplus_taints(node: Data, absent: List[str]) -> List[str]:
    """Those of the taints that must not be there which the node has, as KEY:EFFECT."""
    taints = node.get("spec", {}).get("taints") or []
    there = {"{}:{}".format(taint["key"], taint["effect"]) for taint in taints}
    return [one for one in absent if one in there]


def taint_arguments(surplus: List[str]) -> List[str]:
    """Arguments of `kubectl taint` that remove taints."""
    return [one + "-" for one in surplus]


def combined(current: Data, wanted: Data) -> Data:
    """The labels of a node when it has got those that it must have."""
    both = {**current, **{key: None if value is None else str(value) for key, value in wanted.items()}}
    return {key: value for key, value in both.items() if value is not None}


def prepared(name: str, labels: List[str], taints: List[str], old: List[str], record: List[str]) -> str:
    """The commands for a node's record, its labels, its taints and its older pods, a line each."""
    commands = (
        (["annotate"], record),
        (["label", "node", name], labels),
        (["taint", "node", name], taints),
        (["delete", "pods"], old),
    )
    return "".join(" ".join(["kubectl", *verb, *what]) + "\n" for verb, what in commands if what)


def of_kind(kind: str, items: List[Data]) -> List[Data]:
    """Those of a mixed list that are of this kind."""
    return [item for item in items if item["kind"] == kind]


def owned(daemonset: Data, items: List[Data]) -> List[Data]:
    """Those of a list that belong to the DaemonSet."""
    uid = daemonset["metadata"]["uid"]
    return [
        item
        for item in items
        if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", []))
    ]


def observed(daemonset: Data) -> bool:
    """Has the DaemonSet controller processed the present template, so that it has a ControllerRevision?"""
    seen: int = daemonset["status"].get("observedGeneration", 0)
    present: int = daemonset["metadata"]["generation"]
    return seen >= present


def present_hash(daemonset: Data, items: List[Data]) -> str:
    """What the pods of the present template have as HASH; the DaemonSet is observed().

    It is that of the newest revision: a template that was there before gets the next number, too.
    """
    revisions = owned(daemonset, of_kind("ControllerRevision", items))
    newest: str = max(revisions, key=lambda one: one["revision"])["metadata"]["labels"][HASH]
    return newest


def is_ended(pod: Data) -> bool:
    """Is the pod being deleted?"""
    return "deletionTimestamp" in pod["metadata"]


def is_of(pod: Data, revision: str) -> bool:
    """Is the pod of this template, and not being deleted?"""
    return pod["metadata"]["labels"].get(HASH) == revision and not is_ended(pod)


def is_renewed(pod: Data, revision: str) -> bool:
    """Is the pod of this template, and Ready?"""
    return is_of(pod, revision) and is_true(pod, "Ready")


def on_node(pods: List[Data], node: str) -> List[Data]:
    """The pods that are on this node."""
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def waiting(pod: Data) -> Optional[Tuple[str, str]]:
    """(reason, message) of the first container that waits; None when none does."""
    for status in pod["status"].get("containerStatuses", []):
        if "waiting" in status["state"]:
            wait = status["state"]["waiting"]
            return wait.get("reason", ""), wait.get("message", "")
    return None


def state(pod: Data) -> str:
    """How a pod is, for people."""
    words: str = pod["status"]["phase"] + (", Ready" if is_true(pod, "Ready") else ", not Ready")
    wait = waiting(pod)
    if wait is not None:
        words += ", {}: {}".format(*wait)
    if is_ended(pod):
        words += ", being ended since {}".format(pod["metadata"]["deletionTimestamp"])
    return words


def remedy(daemonset: Data, pods: List[Data]) -> str:
    """What to do when these are all pods that a DaemonSet has on a node which it should have renewed."""
    for pod in pods:
        if is_ended(pod):
            return "The node's kubelet does not end the old pod: restart K3s on the board."
        if (waiting(pod) or ("",))[0] in WITHOUT_IMAGE:
            return "The image is not on the board: run playbooks/site.yml for it, which loads it."
    return (
        "`sudo k3s kubectl --namespace {namespace} describe daemonset {name}` on a server says why.".format(
            **daemonset["metadata"]
        )
    )


def why_not_renewed(daemonset: Data, pods: List[Data]) -> str:
    """Why a DaemonSet does not run its present template on a node, and what to do about it, for people."""
    lines = ["DaemonSet {} does not run its present template there.".format(daemonset["metadata"]["name"])]
    found = ["Pod {} is {}.".format(pod["metadata"]["name"], state(pod)) for pod in pods]
    return "\n".join([*lines, *(found or ["It has no pod there."]), remedy(daemonset, pods)])


class NotRenewedError(Exception):
    """A DaemonSet does not run its present template on the node; the text says what is there instead."""


def provider(selector: str) -> List[Data]:
    """The DaemonSets of a provider with all that is theirs, in one call."""
    return listed("daemonsets,controllerrevisions,pods", NAMESPACE, "--selector=" + selector)


def serving(items: List[Data], labels: Data) -> List[Data]:
    """The DaemonSets that run on a node with these labels."""
    return [one for one in of_kind("DaemonSet", items) if selects(one, labels)]


def outdated(items: List[Data], node: str, labels: Data) -> List[str]:
    """Names of the pods on the node that are of an older template than their DaemonSet's present one."""
    names = []
    for daemonset in filter(observed, serving(items, labels)):
        revision = present_hash(daemonset, items)
        names += [
            pod["metadata"]["name"]
            for pod in owned(daemonset, on_node(of_kind("Pod", items), node))
            if not is_of(pod, revision) and not is_ended(pod)
        ]
    return names


def remove_orphans(selector: str, node: str, timeout: int) -> None:
    """Have pods on the node end whose DaemonSet is gone, and wait until they are."""
    items = provider(selector)
    daemonsets = {one["metadata"]["uid"] for one in of_kind("DaemonSet", items)}
    orphans = [
        pod["metadata"]["name"]
        for pod in on_node(of_kind("Pod", items), node)
        if not any(owner["uid"] in daemonsets for owner in pod["metadata"].get("ownerReferences", []))
    ]
    if orphans:
        limit = "--timeout={}s".format(timeout)
        run("delete", "pods", NAMESPACE, "--ignore-not-found", limit, *orphans)


def left(items: List[Data], before: Data, after: Data) -> List[Data]:
    """The DaemonSets that run on a node with the labels `before`, and not with the labels `after`."""
    return [one for one in serving(items, before) if not selects(one, after)]


def leave(selector: str, node: str, before: Data, after: Data, deadline: float) -> None:
    """Take the node away from DaemonSets that it is about to leave, and wait until their pods have ended.

    The kubelet misses the end of a plugin that registers while another one of the resource ends. A run that
    ends here leaves the node without these labels, and the next one sets them. NotRenewedError if they do
    not end before `deadline`.
    """
    daemonsets = left(provider(selector), before, after)
    if not daemonsets:
        return
    keys = {key for one in daemonsets for key in one["spec"]["template"]["spec"]["nodeSelector"]}
    gone = sorted(key for key in keys if before.get(key) != after.get(key))
    run("label", "node", node, *[key + "-" for key in gone])
    while True:
        items = provider(selector)
        pods = on_node(of_kind("Pod", items), node)
        those = [(one, owned(one, pods)) for one in daemonsets if owned(one, pods)]
        if not those:
            return
        if time.monotonic() > deadline:
            raise NotRenewedError(why_not_left(*those[0]))
        time.sleep(POLL_SECONDS)


def why_not_left(daemonset: Data, pods: List[Data]) -> str:
    """Why a node still has pods of a DaemonSet that does not run there any more, for people."""
    lines = [
        "DaemonSet {} still has pods there, which should have ended.".format(daemonset["metadata"]["name"])
    ]
    found = ["Pod {} is {}.".format(pod["metadata"]["name"], state(pod)) for pod in pods]
    return "\n".join([*lines, *found, "If the node's kubelet does not end them, restart K3s on the board."])


def renew(selector: str, node: str, labels: Data, deadline: float) -> bool:
    """Have the DaemonSets of a node with these labels run their present template; were there older pods?

    NotRenewedError when one of them does not before `deadline` (of time.monotonic).
    """
    there = "--field-selector=spec.nodeName=" + node
    items = provider(selector)
    try:
        for daemonset in serving(items, labels):
            if not observed(daemonset):
                name = daemonset["metadata"]["name"]
                wait_until(observed, name, _left(deadline), "daemonset", name, NAMESPACE)
                items = provider(selector)
        old = outdated(items, node, labels)
        if old:
            run("delete", "pods", NAMESPACE, "--ignore-not-found", "--wait=false", *old)
        for daemonset in serving(items, labels):
            revision = present_hash(daemonset, items)
            renewed = functools.partial(is_renewed, revision=revision)
            if not any(map(renewed, on_node(of_kind("Pod", items), node))):
                of_it = "--selector={},{}={}".format(selector, HASH, revision)
                wait_until(renewed, revision, _left(deadline), "pods", NAMESPACE, of_it, there)
    except WatchTimeoutError:
        pods = owned(daemonset, on_node(of_kind("Pod", provider(selector)), node))
        raise NotRenewedError(why_not_renewed(daemonset, pods)) from None
    return bool(old)


def remove_taints(name: str, node: Data, absent: List[str]) -> List[str]:
    """Remove taints of the node that must not be there; the arguments of `kubectl taint` for it.

    `node` is as before its labels changed. A pod that has ended since may have removed its taint.
    """
    now = get("node", name) if surplus_taints(node, absent) else None
    taints = taint_arguments(surplus_taints(now, absent)) if now else []
    if taints:
        run("taint", "node", name, *taints)
    return taints


def _left(deadline: float) -> int:
    """Seconds until then as an integer, at least one."""
    return max(1, int(deadline - time.monotonic()))


def warnings(name: str) -> str:
    """The warnings among a pod's events, a line each, the newest last."""
    events = listed("events", NAMESPACE, "--field-selector=type=Warning,involvedObject.name=" + name)
    events.sort(key=lambda event: event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])
    return "\n".join("{reason}: {message}".format(**event) for event in events[-LOG_LINES:])


def words_of(pod: Data) -> str:
    """A pod's state, and its last output. A pod that has not started has none, and events say why."""
    name, phase = pod["metadata"]["name"], pod["status"]["phase"]
    restarts = sum(entry.get("restartCount", 0) for entry in pod["status"].get("containerStatuses", []))
    if phase == "Pending":
        return "Pod {} is {}; its events:\n{}".format(name, phase, warnings(name) or "none")
    previous = ["--previous"] if restarts and not is_true(pod, "Ready") else []
    log = run("logs", NAMESPACE, "--tail={}".format(LOG_LINES), name, *previous)
    return "Pod {} is {}, restarted {} times; its last output:\n{}".format(name, phase, restarts, log)


def last_words(selector: str, node: str) -> str:
    """What the pods say that should serve a resource on this node."""
    pods = listed("pods", NAMESPACE, "--selector=" + selector, "--field-selector=spec.nodeName=" + node)
    return "\n".join(map(words_of, pods)) or "No pod with {} runs there.".format(selector)


def explained(selector: str, node: str) -> str:
    """last_words(), or why there are none."""
    try:
        return redact(last_words(selector, node))
    except KubectlError as error:
        return str(error)


def ready(name: str, timeout: int) -> Tuple[Data, Optional[Data]]:
    """The node, as soon as it is Ready, and the Secret that keeps its name. NotOfferedError."""
    node, secret = node_and_password(name)
    if node is None or lacking(node, {}):
        return wait_offered(name, {}, timeout), password(name)
    return node, secret


def planned(params: Data) -> str:
    """The commands that a run would give, for check mode. Before the first run there is no cluster."""
    name, there = params["name"], has_kubectl()
    node, secret = node_and_password(name) if there else (None, None)
    check_owner(node, secret, params, params["new"])
    labels = node["metadata"].get("labels", {}) if node else {}
    missing = label_arguments(labels, params["labels"])
    wanted = combined(labels, params["labels"])
    old = outdated(provider(params["provider"]), name, wanted) if node and params["renew"] else []
    record = record_arguments(secret, params) if node else []
    surplus = surplus_taints(node, params["absent_taints"]) if node else []
    return prepared(name, missing, taint_arguments(surplus), old, record)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "name": {"type": "str", "required": True},
            "board": {"type": "str", "required": True},
            "boards": {"type": "dict", "required": True},
            "new": {"type": "bool", "default": False},
            "labels": {"type": "dict", "default": {}},
            "absent_taints": {"type": "list", "elements": "str", "default": []},
            "offers": {"type": "dict", "default": {}},
            "provider": {"type": "str"},
            "renew": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 180},
        },
        required_if=[("renew", True, ["provider"])],
        supports_check_mode=True,
    )
    name, wanted, selector = module.params["name"], module.params["labels"], module.params["provider"]
    offers = {key: int(number) for key, number in module.params["offers"].items()}
    use(module.params)

    try:
        if module.check_mode:
            commands = planned(module.params)
            module.exit_json(changed=bool(commands), diff={"prepared": commands})
        deadline = time.monotonic() + module.params["timeout"]
        node, secret = ready(name, module.params["timeout"])
        check_owner(node, secret, module.params, module.params["new"])
        record = record_arguments(secret, module.params)
        if record:
            run("annotate", "--overwrite", NAMESPACE, *record)
        labels = node["metadata"].get("labels", {})
        missing, after = label_arguments(labels, wanted), combined(labels, wanted)
        if missing and module.params["renew"]:
            # By its labels the node may get pods that cannot be beside those.
            remove_orphans(selector, name, _left(deadline))
            leave(selector, name, labels, after, deadline)
        if missing:
            run("label", "--overwrite", "node", name, *missing)
        taints = remove_taints(name, node, module.params["absent_taints"])
        # After the labels: what serves the resources may be scheduled by them.
        renewed = renew(selector, name, after, deadline) if module.params["renew"] else False
        is_settled = not missing and not renewed and not lacking(node, offers)
        if offers and not is_settled:
            node = wait_offered(name, offers, _left(deadline))
    except (NotRenewedError, NotOfferedError) as error:
        words = "\n" + explained(selector, name) if selector else ""
        module.fail_json(msg="node {}: {}{}".format(name, error, words))
    except (KubectlError, OSError, ValueError) as error:
        module.fail_json(msg="node {}: {}".format(name, error))
    module.exit_json(
        changed=bool(missing or record or taints) or renewed,
        diff={"prepared": prepared(name, missing, taints, [], record)},
        cordoned=CORDONED in node["metadata"].get("annotations", {}),
    )


if __name__ == "__main__":
    main()
