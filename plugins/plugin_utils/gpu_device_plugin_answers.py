# SPDX-License-Identifier: Apache-2.0
"""Checks of a board's answers that the server applies to the cluster.

A board is not trusted. The server has the rights of the cluster's administrator, so it gets no label outside
of the plugin's own domains, no option of kubectl, and no other object than the Device of the board's node.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var

# Kubernetes' syntax of a label (apimachinery, validation.go), in the domains of the plugin's labels.
LABEL = re.compile(r"(nvidia[.]com|jetson-k3s[.]github[.]io)/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
DEVICE_LABEL = re.compile(r"node[.]koordinator[.]sh/gpu-(vendor|model)")
API_VERSION, KIND = "scheduling.koordinator.sh/v1alpha1", "Device"
DOMAIN = "jetson-k3s.github.io"
# The node agent's, printed while the agent is wanted.
SHARE_LABEL = f"{DOMAIN}/gpu-share"
# Printed while devices are configured, and the board has one of them.
DEVICES_LABEL = f"{DOMAIN}/devices"
JTOP_FACTS = ("model", "module", "l4t", "jetpack", "gpu", "compute-capability", "disagrees")
# What the plugin prints while jtop says it: an old value would stay otherwise.
JTOP_LABELS = (f"{DOMAIN}/power-mode", *(f"{DOMAIN}/jtop.{name}" for name in JTOP_FACTS))
MANAGED_BY = {"app.kubernetes.io/managed-by": "jetson-k3s"}


def parsed(text: str) -> dict[str, Any]:
    """The JSON object in the output of the plugin."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise AnsibleFilterError(f"the plugin on the board did not answer in JSON: {error}") from error
    if not isinstance(found, dict):
        raise AnsibleFilterError("the plugin on the board did not answer with a JSON object")
    return found


def is_value(value: Any) -> bool:
    """Whether this is the value of a label."""
    return isinstance(value, str) and VALUE.fullmatch(value) is not None


def labels(text: str) -> dict[str, str]:
    """The labels that the plugin on the board prints; AnsibleFilterError names another one."""
    found = parsed(text)
    for key, value in found.items():
        if not LABEL.fullmatch(key) or not is_value(value):
            raise AnsibleFilterError(
                f"the board gave the label {key!r}={value!r}, which the device plugin does not set. The node"
                " was not labelled. Check who has changed the board, or the plugin's image on it."
            )
    return found


def node_labels(text: str, planned: dict[str, str | None]) -> dict[str, str | None]:
    """All labels that the node gets: those that the plugin prints, and the planned ones. None removes one."""
    # Without text the plugin did not run: check mode on a board that lacks the image.
    old = dict.fromkeys((*JTOP_LABELS, DEVICES_LABEL)) if text else {}
    return {SHARE_LABEL: None, **old, **labels(text), **planned}


def device(text: str, node: str) -> dict[str, Any] | None:
    """Koordinator's Device of the node, made of the output of the plugin on the board; None without output.

    AnsibleFilterError when it is another object.
    """
    found = parsed(text)
    if not found:
        return None
    try:
        kind, metadata = (found["apiVersion"], found["kind"]), found["metadata"]
        others = {key: value for key, value in metadata["labels"].items() if key not in MANAGED_BY}
        right = (
            kind == (API_VERSION, KIND)
            and metadata["name"] == node
            and all(DEVICE_LABEL.fullmatch(key) and is_value(value) for key, value in others.items())
        )
        devices = found["spec"]["devices"]
    except (KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise AnsibleFilterError(
            f"the board gave another object than the {KIND} of its node {node}. Nothing was applied. Check"
            " who has changed the board, or the plugin's image on it."
        )
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node, "labels": others | MANAGED_BY},
        "spec": {"devices": devices},
    }


FILTERS = {
    "gpu_device_plugin_node_labels": lambda *given: wrap_var(node_labels(*given)),
    "gpu_device_plugin_device": lambda text, node: wrap_var(device(text, node)),
}
