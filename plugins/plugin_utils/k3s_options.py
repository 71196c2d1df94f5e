# SPDX-License-Identifier: Apache-2.0
"""K3s' options: the settings that the roles refuse, and the reason for each. Pure functions."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple


class Refused(NamedTuple):
    """An option that the roles refuse, wherever it stands."""

    changes: str
    reason: str
    harmless: tuple[str, ...] = ()


NAME, CLUSTER = "the name of the board's node", "the cluster that the board is in"
RUNTIME, PLACE = "what runs the pods", "the place of K3s' files"
NODE, SERVER = "whether the board is a node", "whether the board is a complete server"
ONE_START = "it is no setting, but a command for one start"
DOCKER_SOCKETS = tuple(
    f"{scheme}{run}/docker.sock" for scheme in ("", "unix://") for run in ("/run", "/var/run")
)

# In k3s_server_config, k3s_agent_config, the owner's files in /etc/rancher/k3s and the unit's environment.
# `harmless` values say what the roles say. A switch that is off is harmless, too.
REFUSED = {
    "cluster-reset": Refused(CLUSTER, ONE_START),
    "cluster-reset-restore-path": Refused(CLUSTER, ONE_START),
    "config": Refused(PLACE, "K3s reads /etc/rancher/k3s/config.yaml", ("/etc/rancher/k3s/config.yaml",)),
    "container-runtime-endpoint": Refused(RUNTIME, "k3s_container_runtime says it", DOCKER_SOCKETS),
    "data-dir": Refused(
        PLACE,
        "the roles expect K3s' files in /var/lib/rancher/k3s; mount another disk there",
        ("/var/lib/rancher/k3s",),
    ),
    "disable-agent": Refused(NODE, "the roles wait for a node and its GPU on each board"),
    "disable-apiserver": Refused(SERVER, "the roles ask each server for the cluster"),
    "disable-controller-manager": Refused(SERVER, "the roles ask each server for the cluster"),
    "disable-etcd": Refused(SERVER, "the roles ask each server for the cluster"),
    "docker": Refused(RUNTIME, "k3s_container_runtime says it"),
    "image-service-endpoint": Refused(RUNTIME, "k3s_container_runtime says it"),
    "node-name": Refused(NAME, "it is the board's host name"),
    "rootless": Refused(NODE, "K3s without root gets neither Docker nor the GPU"),
    "server": Refused(CLUSTER, "k3s_server_url says it"),
    "with-node-id": Refused(NAME, "it is the board's host name"),
}
# Arguments of the kubelet that override the same facts (kubelet-arg).
KUBELET = {
    "container-runtime": Refused(RUNTIME, "k3s_container_runtime says it", ("remote",)),
    "container-runtime-endpoint": Refused(RUNTIME, "k3s_container_runtime says it"),
    "hostname-override": Refused(NAME, "it is the board's host name"),
    "image-service-endpoint": Refused(RUNTIME, "k3s_container_runtime says it"),
    "kubeconfig": Refused(CLUSTER, "K3s writes the kubelet's own"),
    "register-node": Refused(NODE, "the roles wait for a node on each board", ("true",)),
    "root-dir": Refused(
        PLACE, "the device plugin expects the kubelet in /var/lib/kubelet", ("/var/lib/kubelet",)
    ),
    "runonce": Refused(NODE, "the kubelet ends after its first pods", ("false",)),
}
# Refused in the inventory, which has a variable for each. In the owner's files they change no board.
ELSEWHERE = {
    "agent-token": "k3s_agent_token says it",
    "agent-token-file": "k3s_agent_token says it",
    "cluster-init": "the number of boards in the group server says it",
    "cluster-secret": "k3s_token says it",
    "node-label": "K3s sets it only once, when a node registers; k3s_node_labels keeps labels",
    "pause-image": "it comes with the bundle",
    "private-registry": "k3s_registries says it, or your own /etc/rancher/k3s/registries.yaml",
    "token": "k3s_token says it",
    "token-file": "k3s_token says it",
}
# All other options up to K3s 1.36, hidden and former ones as well. They leave a board the node that it is:
# addresses of a node (node-ip, node-external-ip, vpn-auth) are no name; default-runtime, snapshotter and
# registries are containerd's own settings, and pods name their RuntimeClass; prefer-bundled-bin takes K3s'
# iptables, which follows the backend of the rules that it finds; disable-scheduler leaves another scheduler.
FREE = frozenset(
    """
    advertise-address advertise-port airgap-extra-registry alsologtostderr apiserver-bind-address
    apiserver-port bind-address cluster-cidr cluster-dns cluster-domain datastore-cafile datastore-certfile
    datastore-endpoint datastore-keyfile debug default-local-storage-path default-runtime disable
    disable-apiserver-lb disable-cloud-controller disable-default-registry-endpoint disable-helm-controller
    disable-kube-proxy disable-network-policy disable-scheduler disable-selinux egress-selector-mode
    embedded-registry enable-pprof etcd-arg etcd-disable-snapshots etcd-expose-metrics etcd-s3
    etcd-s3-access-key etcd-s3-bucket etcd-s3-bucket-lookup-type etcd-s3-config-secret etcd-s3-endpoint
    etcd-s3-endpoint-ca etcd-s3-folder etcd-s3-insecure etcd-s3-proxy etcd-s3-region etcd-s3-retention
    etcd-s3-secret-key etcd-s3-session-token etcd-s3-skip-ssl-verify etcd-s3-timeout etcd-snapshot-compress
    etcd-snapshot-dir etcd-snapshot-name etcd-snapshot-retention etcd-snapshot-schedule-cron
    flannel-backend flannel-cni-conf flannel-conf flannel-external-ip flannel-iface flannel-ipv6-masq
    helm-job-image https-listen-port image-credential-provider-bin-dir image-credential-provider-config
    kine-tls kube-apiserver-arg kube-cloud-controller-arg kube-cloud-controller-manager-arg
    kube-controller-arg kube-controller-manager-arg kube-proxy-arg kube-scheduler-arg kubelet-arg
    lb-server-port log multi-cluster-cidr no-deploy no-flannel node-external-dns node-external-ip
    node-internal-dns node-ip node-taint nonroot-devices prefer-bundled-bin protect-kernel-defaults
    resolv-conf secrets-encryption secrets-encryption-provider selinux service-cidr service-node-port-range
    servicelb-namespace snapshotter supervisor-metrics supervisor-port system-default-registry tls-san
    tls-san-security v vmodule vpn-auth vpn-auth-file write-kubeconfig write-kubeconfig-group
    write-kubeconfig-mode
""".split()
)
# Keys of K3s whose value is a secret, not the path of one: those of role redact, which boards have.
SECRETS = frozenset(
    {
        "agent-token",
        "cluster-secret",
        "datastore-endpoint",
        "etcd-s3-access-key",
        "etcd-s3-config-secret",  # only the name of a Secret, which nothing tells from a secret
        "etcd-s3-secret-key",
        "etcd-s3-session-token",
        "token",
        "vpn-auth",
    }
)
# A line of `k3s server --help`: names, then what a value is called if there is one, then two spaces or more.
OPTION = re.compile(
    r"^ +--?(?P<name>[a-z0-9-]+)(?P<value> \S+)?(?:, -\S+(?: \S+)?)*(?: \[.*?\])?(?:  |$)", re.MULTILINE
)
OFF = ("", "0", "f", "F", "false", "FALSE", "False")  # Go's strconv.ParseBool, and no value


def reason(key: str) -> str | None:
    """Why an inventory must not have this setting, None where it may."""
    return REFUSED[key].reason if key in REFUSED else ELSEWHERE.get(key)


def problems(config: dict[str, Any], shown: str, role: str) -> list[str]:
    """What is wrong with the settings that an inventory has for K3s, a sentence each.

    `shown` is the output of `k3s <role> --help`, which knows what this version takes.
    """
    takes = {match["name"]: match["value"] is not None for match in OPTION.finditer(shown)}
    found = []
    for given, value in config.items():
        key = given.removesuffix("+")
        if why := reason(key):
            found.append(f"{given}: {why}")
        elif key not in takes:
            close = difflib.get_close_matches(key, takes, n=1)
            instead = f"; is {close[0]} meant?" if close else ""
            found.append(f"{given}: this K3s has no such option of `k3s {role}`{instead}")
        elif key != given and key in config:
            found.append(f"{given}: {key} is there as well; give one of the two")
        elif not all(isinstance(one, str | int | float) for one in _listed(value)):
            but = "" if key in SECRETS else f", not {value!r}"
            found.append(f"{given}: text, a number, true, false or a list of them is needed{but}")
        elif takes[key] and isinstance(value, bool):
            found.append(f"{given}: a value is needed, not {str(value).lower()}")
        elif not takes[key] and not isinstance(value, bool):
            found.append(f"{given}: true or false is needed, not {value!r}")
    return found


def has_secrets(config: dict[str, Any]) -> bool:
    """Does one of the settings have a secret?"""
    return any(key.removesuffix("+") in SECRETS for key in config)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def refused(
    reading: dict[str, Any], inventory: dict[str, Any], ours: dict[str, Any], role: str
) -> list[dict[str, str]]:
    """The refused settings of all that K3s will read, each with `name`, `source`, `changes` and `reason`.

    `reading` is from k3s_reading.reading, `inventory` has the variable's settings, `ours` those of the role.
    """
    variable = f"k3s_{role}_config"
    own = {key.removesuffix("+"): str(value).lower() for key, value in ours.items()}
    found = []
    for given in inventory:
        key = given.removesuffix("+")
        if why := reason(key):
            changes = REFUSED[key].changes if key in REFUSED else "a setting that the inventory has elsewhere"
            found.append(_problem(given, variable, changes, why))
    for key, entry in REFUSED.items():
        value, source = (reading["options"].get(key) or [["", ""]])[-1]
        same = value.lower() == own[key] if key in own else value in (*entry.harmless, *OFF)
        if source not in ("", variable) and not same:
            found.append(_problem(key, source, entry.changes, entry.reason))
    for name, value, source in reading["kubelet"]:
        same = name == "hostname-override" and value.lower() == own["node-name"]
        if name in KUBELET and value not in KUBELET[name].harmless and not same:
            found.append(_problem(f"kubelet-arg {name}", source, KUBELET[name].changes, KUBELET[name].reason))
    return found


def _problem(name: str, source: str, changes: str, why: str) -> dict[str, str]:
    return {"name": name, "source": source, "changes": changes, "reason": why}


def not_taken_over(command: str | None) -> list[str]:
    """Flags of an installation that the roles refuse, and that no variable replaces."""
    words = [word.partition("=")[0] for word in (command or "").split()[2:] if word.startswith("-")]
    # The short ones are config and data-dir.
    names = {*REFUSED, "c", "d"} - {"docker", "server"}
    return [word for word in words if word.lstrip("-") in names]


FILTERS = {"k3s_not_taken_over": not_taken_over, "k3s_problems": problems}
