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
# By the devices' attribute `sharing`. In capacity mode, a claim without a capacity gets all of the GPU.
CLASSES = {"exclusive": DRIVER, "capacity": DRIVER, "shares": "shared." + DRIVER}
# The scheduler's message if no device is free (its plugin dynamicresources).
NONE_LEFT = "cannot allocate all claims"


def devices(node: str) -> List[Data]:
    """The devices that the driver has published for a node."""
    slices = get("resourceslices", slices_of(node)) or {"items": []}
    return [device for item in slices["items"] for device in item["spec"].get("devices") or []]


def wait_for_devices(node: str, seconds: float) -> List[Data]:
    """The same. Waits if there is no device: a kubelet removes older slices when it starts."""
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
    """The field selector of the driver's slices of a node."""
    return "--field-selector=spec.driver={},spec.nodeName={}".format(DRIVER, node)


def sharing_of(found: Sequence[Data]) -> str:
    """The DRA driver's mode, by the attribute of its devices."""
    sharing: str = found[0]["attributes"]["sharing"]["string"]
    return sharing


def name_of_class(found: Sequence[Data]) -> str:
    """The DeviceClass of the claims for these devices."""
    sharing = sharing_of(found)
    if sharing not in CLASSES:
        raise CheckFailed("the driver has an unknown sharing mode: {}".format(sharing))
    return CLASSES[sharing]


def taints(device: Data) -> List[str]:
    """The taints that keep pods from a device, as text."""
    return [
        "{}={} ({})".format(taint["key"], taint.get("value", ""), taint["effect"])
        for taint in device.get("taints") or []
        if taint["effect"] != "None"
    ]


def template_name(count: int) -> str:
    """The name of the template of claims for this number of devices."""
    return "gpu-{}".format(count)


def templates(gpu: Data) -> List[Data]:
    """The templates of the pods' claims: for one device, and for all devices."""
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


def add_claim(spec: Data, count: int) -> None:
    """Add a claim for this number of devices to a pod, for its only container."""
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template_name(count)}]
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}


def claimants(node: str) -> List[str]:
    """Pods (namespace/name) with a claim for a device of the node."""
    claims = get("resourceclaims", "--all-namespaces") or {"items": []}
    return claim_users(claims["items"], DRIVER, node)
