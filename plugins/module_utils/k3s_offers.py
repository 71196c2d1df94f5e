# SPDX-License-Identifier: Apache-2.0
"""Offers of a node: extended resources, and the number of free devices of each DRA driver.

Used on a K3s server, therefore Python 3.6 compatible.
"""

import time
from typing import Dict, Optional

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_quantities as quantities
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    DRA,
    Data,
    WatchTimeoutError,
    condition,
    knows,
    listed,
    wait_until,
)

# Interval of checks of the devices that claims can get.
POLL_SECONDS = 2


class NotOfferedError(Exception):
    """The node is not Ready, or offers too little; the text says what is missing."""


def extended(node: Data, which: str = "allocatable") -> Dict[str, int]:
    """The extended resources that a node offers, {name: number}."""
    return {
        name: number for name, number in quantities.extended(node["status"].get(which)).items() if number > 0
    }


def devices(name: str) -> Dict[str, int]:
    """The number of devices without a taint, {driver: number}. A taint with effect None does not count."""
    free: Dict[str, int] = {}
    if knows(DRA):
        for item in listed("resourceslices", "--field-selector=spec.nodeName=" + name):
            for device in item["spec"].get("devices") or []:
                if all(taint["effect"] == "None" for taint in device.get("taints") or []):
                    driver = item["spec"]["driver"]
                    free[driver] = free.get(driver, 0) + 1
    return free


def missing_offers(found: Dict[str, int], offers: Dict[str, int]) -> str:
    """The missing offers as text; '' if nothing is missing."""
    return ", ".join(
        "{} {} instead of {}".format(found.get(name, 0), name, number)
        for name, number in sorted(offers.items())
        if found.get(name, 0) < number
    )


def lacking(node: Optional[Data], offers: Dict[str, int], boot_id: Optional[str] = None) -> str:
    """Why a node is not Ready with these offers, as text; '' if it is."""
    if node is None:
        return "it has not registered"
    if boot_id and node["status"].get("nodeInfo", {}).get("bootID") != boot_id:
        return "its kubelet has not reported since the board started"
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        return "it is not Ready: {}".format(ready.get("message", "the kubelet has not reported"))
    return missing_offers(extended(node), offers)


def wait_offered(name: str, offers: Dict[str, int], timeout: float, boot_id: Optional[str] = None) -> Data:
    """Wait until the node is Ready with these offers; returns the node. NotOfferedError."""
    deadline = time.monotonic() + timeout
    resources = {key: number for key, number in offers.items() if "/" in key}
    of_drivers = {key: number for key, number in offers.items() if "/" not in key}
    try:
        node = wait_until(lambda node: not lacking(node, resources, boot_id), name, timeout, "node", name)
    except WatchTimeoutError as error:
        missing = lacking(error.last, resources, boot_id)
        raise NotOfferedError("after {} s {}".format(timeout, missing)) from error
    while of_drivers:
        missing = missing_offers(devices(name), of_drivers)
        if not missing:
            break
        if time.monotonic() > deadline:
            raise NotOfferedError("after {} s {}".format(timeout, missing))
        time.sleep(POLL_SECONDS)
    return node
