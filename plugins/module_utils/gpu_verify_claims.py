# SPDX-License-Identifier: Apache-2.0
"""Dynamic Resource Allocation: a node's slices, the claims of the verification's pods, and other claims.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

from typing import List, Sequence

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import DRA as API_VERSION
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    WatchTimeoutError,
    claim_users,
    get,
    wait_until,
)

DRA = "dra"
DRIVER = "gpu.jetson-k3s.github.io"
# By the devices' attribute `sharing`. Of a GPU in capacity mode a claim that names none takes all.
CLASSES = {"exclusive": DRIVER, "capacity": DRIVER, "shares": "shared." + DRIVER}
# The scheduler's words for claims that nothing is left for (its plugin dynamicresources).
NONE_LEFT = "cannot allocate all claims"


def devices(node: str) -> List[Data]:
    """The devices that the driver has published for a node."""
    slices = get("resourceslices", slices_of(node)) or {"items": []}
    return [device for item in slices["items"] for device in item["spec"].get("devices") or []]


def wait_for_devices(node: str, seconds: float) -> List[Data]:
    """The same; where there is none, waits for one: a kubelet that starts removes the slices before it."""
    found = devices(node)
    if found:
        return found
    try:
        wait_until(
            lambda item: item["spec"].get("devices"), "a device", seconds, "resourceslices", slices_of(node)
        )
    except WatchTimeoutError:
        return []
    return devices(node)


def slices_of(node: str) -> str:
    """What selects the driver's slices of a node."""
    return "--field-selector=spec.driver={},spec.nodeName={}".format(DRIVER, node)


def sharing_of(found: Sequence[Data]) -> str:
    """The DRA driver's mode, by the attribute of its devices."""
    sharing: str = found[0]["attributes"]["sharing"]["string"]
    return sharing


def name_of_class(found: Sequence[Data]) -> str:
    """The class by which the proof asks for one of these devices."""
    sharing = sharing_of(found)
    if sharing not in CLASSES:
        raise CheckFailed("the driver shares the GPU in a way that is not known here: {}".format(sharing))
    return CLASSES[sharing]


def taints(device: Data) -> List[str]:
    """Why a device is given to no pod: its taints as people read them."""
    return [
        "{}={} ({})".format(taint["key"], taint.get("value", ""), taint["effect"])
        for taint in device.get("taints") or []
        if taint["effect"] != "None"
    ]


def template_name(count: int) -> str:
    """The name of the template of claims for so many devices."""
    return "gpu-{}".format(count)


def templates(gpu: Data) -> List[Data]:
    """The templates of the proof's claims: for one device, and for all of them."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": template_name(count)},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "gpu",
                                "exactly": {"deviceClassName": gpu["resource"], "count": count},
                            }
                        ]
                    }
                }
            },
        }
        for count in sorted({1, gpu["devices"]})
    ]


def ask(spec: Data, count: int) -> None:
    """Have a pod's only container ask for so many devices by a claim of the pod's own."""
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template_name(count)}]
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}


def claimants(node: str) -> List[str]:
    """Pods (namespace/name) with a claim for a device of the node."""
    claims = get("resourceclaims", "--all-namespaces") or {"items": []}
    return claim_users(claims["items"], DRIVER, node)
