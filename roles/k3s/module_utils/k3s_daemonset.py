# SPDX-License-Identifier: Apache-2.0
"""Is what a DaemonSet runs on a node what its present template asks for? Pure.

Used on a K3s server, therefore Python 3.6 compatible.
"""

from ansible.module_utils.k3s_kubectl import is_true

# Label of a DaemonSet's pods and of its ControllerRevisions, of which each template has one (apps/v1).
HASH = "controller-revision-hash"
# Annotations of ours, by which templates with images of the same name differ.
OURS = "jetson-k3s.github.io/"
# Of an annotation's value, as the hash of an image.
SHOWN_CHARACTERS = 19
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


def runs(template):
    """What a pod or a template runs, for people: images, and our annotations."""
    images = ", ".join(container["image"] for container in template["spec"]["containers"])
    annotations = template["metadata"].get("annotations") or {}
    marks = [
        "{} {}".format(key[len(OURS) :], value[:SHOWN_CHARACTERS])
        for key, value in sorted(annotations.items())
        if key.startswith(OURS)
    ]
    return "{} ({})".format(images, ", ".join(marks)) if marks else images


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
    name, namespace = daemonset["metadata"]["name"], daemonset["metadata"]["namespace"]
    describe = "`sudo k3s kubectl --namespace {} describe {{}} {{}}` on a server says why.".format(namespace)
    if not pods:
        return "It has no pod there. " + describe.format("daemonset", name)
    for pod in pods:
        if is_ended(pod):
            return "The node's kubelet does not end the old pod: restart K3s on the board."
        if (waiting(pod) or ("",))[0] in WITHOUT_IMAGE:
            return "The image is not on the board: run playbooks/site.yml for it, which loads it."
    return describe.format("pod", pods[-1]["metadata"]["name"])


def plight(daemonset, pods):
    """What a DaemonSet should run on a node, what it runs there, and what to do about it, for people."""
    name, wanted = daemonset["metadata"]["name"], runs(daemonset["spec"]["template"])
    lines = ["DaemonSet {} does not run {} there.".format(name, wanted)]
    lines += [
        "Pod {} runs {} and is {}.".format(pod["metadata"]["name"], runs(pod), state(pod)) for pod in pods
    ]
    return "\n".join([*lines, remedy(daemonset, pods)])
