# SPDX-License-Identifier: Apache-2.0
"""Is what a DaemonSet runs on a node what its present template asks for? Pure.

Used on a K3s server, therefore Python 3.6 compatible.
"""

from ansible.module_utils.k3s_kubectl import is_true

# Label of a DaemonSet's pods and of its ControllerRevisions, of which each template has one (apps/v1).
HASH = "controller-revision-hash"
# Why a container waits whose image is not there (pkg/kubelet/images/types.go).
WITHOUT_IMAGE = ("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff")


def of_kind(kind, items):
    """Those of a mixed list that are of this kind."""
    return [item for item in items if item["kind"] == kind]


def owned(daemonset, items):
    """Those of a list that belong to the DaemonSet."""
    uid = daemonset["metadata"]["uid"]
    return [
        item
        for item in items
        if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", []))
    ]


def observed(daemonset):
    """Has the controller seen the present template? Only then there is a ControllerRevision of it."""
    return daemonset["status"].get("observedGeneration", 0) >= daemonset["metadata"]["generation"]


def present_hash(daemonset, items):
    """What the pods of the present template have as HASH; the DaemonSet is observed().

    It is that of the newest revision: a template that was there before gets the next number, too.
    """
    revisions = owned(daemonset, of_kind("ControllerRevision", items))
    return max(revisions, key=lambda one: one["revision"])["metadata"]["labels"][HASH]


def is_ended(pod):
    """Is the pod being deleted?"""
    return "deletionTimestamp" in pod["metadata"]


def is_of(pod, revision):
    """Is the pod of this template, and to stay?"""
    return pod["metadata"]["labels"].get(HASH) == revision and not is_ended(pod)


def is_renewed(pod, revision):
    """Is the pod of this template, and Ready?"""
    return is_of(pod, revision) and is_true(pod, "Ready")


def on_node(pods, node):
    """The pods that are on this node."""
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def waiting(pod):
    """(reason, message) of the first container that waits; None when none does."""
    for status in pod["status"].get("containerStatuses", []):
        if "waiting" in status["state"]:
            wait = status["state"]["waiting"]
            return wait.get("reason", ""), wait.get("message", "")
    return None


def state(pod):
    """How a pod is, for people."""
    words = pod["status"]["phase"] + (", Ready" if is_true(pod, "Ready") else ", not Ready")
    if waiting(pod) is not None:
        words += ", {}: {}".format(*waiting(pod))
    if is_ended(pod):
        words += ", being ended since {}".format(pod["metadata"]["deletionTimestamp"])
    return words


def remedy(daemonset, pods):
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


def plight(daemonset, pods):
    """Why a DaemonSet does not run its present template on a node, and what to do about it, for people."""
    lines = ["DaemonSet {} does not run its present template there.".format(daemonset["metadata"]["name"])]
    found = ["Pod {} is {}.".format(pod["metadata"]["name"], state(pod)) for pod in pods]
    return "\n".join([*lines, *(found or ["It has no pod there."]), remedy(daemonset, pods)])
