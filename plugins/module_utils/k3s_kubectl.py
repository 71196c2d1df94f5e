# SPDX-License-Identifier: Apache-2.0
"""kubectl for the modules that need the cluster: calls, and waiting on watch events.

Modules run on a K3s server with `k3s kubectl`. With the option `kubeconfig` they run on the controller, with
its kubectl and this kubeconfig.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import time
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

Data = Dict[str, Any]  # parsed JSON, such as an object of Kubernetes; a module's parameters

K3S = "/usr/local/bin/k3s"
CHUNK = 65536
# kubectl's message if no API server listens (k8s.io/kubectl, pkg/cmd/util/helpers.go): it did nothing.
NO_SERVER = "was refused - did you specify the right host or port?"
# An API server listens again after at most this time if K3s restarts, as after the loss of another server.
RESTART_SECONDS = 20
# Dynamic Resource Allocation.
DRA = "resource.k8s.io/v1"
# K3s' label of a node that is a member of its embedded etcd (pkg/etcd/member_controller.go).
MEMBER = "node-role.kubernetes.io/etcd"
# K3s' condition of such a node since 1.25.16, 1.26.11, 1.27.8 and 1.28.4; False: a learner (k3s#8724). In
# releases before, a learner has no node yet: its API server starts when it is a voter.
VOTER = "EtcdIsVoter"
# Annotation of a node that we have cordoned. It stays if the run is interrupted.
CORDONED = "jetson-k3s.github.io/cordoned"


class KubectlError(Exception):
    """kubectl failed; the text is its message, without secrets. `fix` says what to do, '' if unknown."""

    fix = ""

    def __init__(self, text: str) -> None:
        super(KubectlError, self).__init__(redact(text))


class K3sAbsentError(KubectlError):
    """There is no K3s on the board on which the module runs."""

    fix = "Run playbooks/site.yml: it installs K3s."

    def __init__(self) -> None:
        super(K3sAbsentError, self).__init__("K3s is not on {}: no {}".format(socket.gethostname(), K3S))


class KubectlAbsentError(KubectlError):
    """There is no kubectl on the controller."""

    fix = "Install kubectl on the computer that runs Ansible: https://kubernetes.io/docs/tasks/tools/"

    def __init__(self) -> None:
        super(KubectlAbsentError, self).__init__(
            "kubectl is not on {}, and k3s_existing_kubeconfig needs it".format(socket.gethostname())
        )


class WatchTimeoutError(Exception):
    """A timeout of a wait; `last` is the object as last seen, None if it never existed."""

    def __init__(self, text: str, last: Optional[Data]) -> None:
        super(WatchTimeoutError, self).__init__(text)
        self.last = last


# Option of each module that needs the cluster.
KUBECONFIG = {"kubeconfig": {"type": "path", "default": ""}}
_kubeconfig = [""]


def use(params: Data) -> None:
    """Use the kubeconfig of a module's parameters, if one is given."""
    _kubeconfig[0] = params.get("kubeconfig") or ""


def by_kubeconfig() -> bool:
    """Has the module a kubeconfig? Its user may read no Secrets, and may not be root of a server."""
    return bool(_kubeconfig[0])


def command(*argv: str) -> List[str]:
    """The command line of kubectl."""
    if by_kubeconfig():
        return ["kubectl", "--kubeconfig=" + _kubeconfig[0], *argv]
    return [K3S, "kubectl", *argv]


def has_kubectl() -> bool:
    """Is there a kubectl? Before the first run a server has none."""
    return shutil.which(command()[0]) is not None


def run(*argv: str, stdin: str = "", accept: Sequence[int] = (0,), timeout: Optional[float] = None) -> str:
    """Output of `kubectl ARGV`; `stdin` is its input, `accept` has the exit codes that are no error.

    A call ends after `timeout` seconds. It is repeated while the API server restarts.
    """
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        code, out, problem = _call(argv, stdin, timeout)
        if code in accept:
            return out
        if NO_SERVER not in problem or time.monotonic() > deadline:
            raise KubectlError("kubectl {}: {}".format(" ".join(argv), problem))
        time.sleep(1)


def _call(argv: Sequence[str], stdin: str, timeout: Optional[float]) -> Tuple[int, str, str]:
    """Exit code, output and error message of one call."""
    try:
        process = subprocess.Popen(
            command(*argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
    except FileNotFoundError:
        raise (KubectlAbsentError() if by_kubeconfig() else K3sAbsentError()) from None
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise KubectlError("kubectl {}: no answer within {} s".format(" ".join(argv), timeout)) from None
    return process.returncode, out, err.strip() or out.strip()


def get(*argv: str) -> Optional[Data]:
    """`kubectl get ARGV -o json`, parsed; None when the object does not exist."""
    out = run("get", "--ignore-not-found", "--output=json", *argv)
    found: Optional[Data] = json.loads(out) if out.strip() else None
    return found


def listed(*argv: str) -> List[Data]:
    """The items of `kubectl get ARGV`, or an empty list: old versions print nothing then."""
    found = get(*argv)
    return found["items"] if found else []


def selects(daemonset: Data, labels: Data) -> bool:
    """Does the DaemonSet run on a node with these labels? Taints and affinities are not looked at."""
    selector = daemonset["spec"]["template"]["spec"].get("nodeSelector") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def knows(api: str) -> bool:
    """Does the server serve this group and version?"""
    return api in run("api-versions").split()


def claim_users(claims: Iterable[Data], driver: str, pool: Optional[str] = None) -> List[str]:
    """Pods (namespace/name) with a claim for a device of this driver, in this pool if one is given."""

    def devices(claim: Data) -> List[Data]:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        return (allocation.get("devices") or {}).get("results") or []

    return sorted(
        "{}/{}".format(claim["metadata"]["namespace"], user["name"])
        for claim in claims
        if any(one["driver"] == driver and pool in (None, one["pool"]) for one in devices(claim))
        for user in claim["status"].get("reservedFor") or []
    )


def wait_until(satisfied: Callable[[Data], object], what: str, timeout: float, *argv: str) -> Data:
    """Watch one object with `kubectl get ARGV --watch` until satisfied(object); returns that object.

    The watch is started again when it ends early (the API server restarts).
    Raises WatchTimeoutError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    last = None
    while time.monotonic() < deadline:
        process = subprocess.Popen(
            command("get", "--watch", "--output=json", *_as_list(argv)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for item in _objects(process.stdout, deadline):
                last = item
                if satisfied(item):
                    return item
        finally:
            process.kill()
            process.communicate()
        time.sleep(
            min(1.0, max(0.0, deadline - time.monotonic()))
        )  # the watch broke: do not hammer the server
    raise WatchTimeoutError("{} did not happen within {} s".format(what, timeout), last)


def _as_list(argv: Sequence[str]) -> Sequence[str]:
    """The same object as a list of one.

    Of an object by its name kubectl does not tell the first event of the watch, which is meant to be what it
    has just printed: kubectl misses changes in between (k8s.io/kubectl, pkg/cmd/get/get.go). Of a list it
    watches from where that ends.
    """
    words = [place for place, word in enumerate(argv) if not word.startswith("-")]
    if len(words) == 1:
        return argv
    name = words[1]
    return (*argv[:name], "--field-selector=metadata.name=" + argv[name], *argv[name + 1 :])


def _objects(pipe: IO[bytes], deadline: float) -> Iterator[Data]:
    """Objects of a watch, JSON documents one after the other, until it ends or the deadline passes."""
    decoder, text = json.JSONDecoder(), ""
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(pipe.fileno(), CHUNK)
        if not chunk:
            return
        text = (text + chunk.decode("utf-8", "replace")).lstrip()  # raw_decode refuses a space in front
        with contextlib.suppress(ValueError):  # the rest is no complete document yet
            while True:
                item, end = decoder.raw_decode(text)
                text = text[end:].lstrip()
                yield item


def condition(item: Data, name: str) -> Data:
    """One entry of status.conditions, {} without it."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == name), {})


def voter(node: Data) -> Optional[bool]:
    """Is this member of embedded etcd a voter? None for a node that is no member."""
    if MEMBER not in node["metadata"].get("labels", {}):
        return None
    return not condition(node, VOTER) or is_true(node, VOTER)


def is_true(item: Data, name: str) -> bool:
    """Does the object have this condition with status True?"""
    return condition(item, name).get("status") == "True"
