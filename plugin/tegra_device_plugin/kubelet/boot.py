# SPDX-License-Identifier: Apache-2.0
"""The first start of a kubelet after a boot: pods with a GPU are there before a plugin has registered.

The kubelet's checkpoint names the resources of its last run. A pod that wants one of them is refused until a
plugin has registered (kubernetes#125579), and an instance that waits for the kubelet is late now and then: by
chance, the kubelet admits pods within milliseconds of its device manager's start.

A resource that the kubelet does not know is no reason to refuse a pod. Its devices are allocated when its
container starts (devicemanager.GetDeviceRunContainerOptions), a second later. If no plugin has registered by
then, the container starts without a GPU, and nobody says so. So the kubelet forgets its resources only where
an instance is ready to serve.

With units or argus it forgets nothing. Before a container starts it calls PreStartContainer for the devices,
and fails for ever where none are allocated yet (devicemanager.callPreStartContainerIfNeeded).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence, Set
from pathlib import Path

from tegra_device_plugin.kubelet import sockets
from tegra_device_plugin.sharing.allocation import Resource
from tegra_device_plugin.system.atomicfile import replace_file

CHECKPOINT = "kubelet_internal_checkpoint"
# It has no checksum, so every kubelet goes on without it. Without a file, a kubelet would set the node's
# capacity to 0 until a plugin registers (devicemanager.ShouldResetExtendedResourceCapacity).
UNREADABLE = "{}"
# If the plug is pulled again before the instance has registered, the next boot puts this one back first (the
# unit of role gpu_device_plugin). Without an instance, that boot would start pods without their GPU.
COPY = f"{CHECKPOINT}.before-boot"
_POLL_SECONDS = 0.1  # no event reports a listener


class NotReadyError(OSError):
    """No instance is ready to serve the kubelet."""


def prepare(directory: Path, resources: Sequence[Resource], seconds: float) -> str:
    """Let the next kubelet of this directory of device plugins admit pods before a plugin has registered.

    `resources` are the plugin's. Waits up to `seconds` for an instance. Says what was done. Raises
    NotReadyError without an instance, OSError if the checkpoint cannot be written.
    """
    deadline = time.monotonic() + seconds
    while not sockets.accepts(directory / sockets.READY_SOCKET):
        if sockets.accepts(directory / sockets.KUBELET_SOCKET):
            return "nothing to do: the kubelet runs already"
        if time.monotonic() >= deadline:
            raise NotReadyError(
                f"no instance with a healthy GPU was ready within {seconds:g} s, so the kubelet may refuse "
                "pods with a GPU. The log of the instance that stands by says why"
            )
        time.sleep(_POLL_SECONDS)
    if any(resource.registration.pre_start for resource in resources):
        return (
            "nothing done: with units or argus a kubelet that has forgotten a container's devices cannot "
            "start it. So it may refuse pods with a GPU"
        )
    return _forget_resources(directory / CHECKPOINT, {resource.name for resource in resources})


def _forget_resources(checkpoint: Path, own: Set[str]) -> str:
    try:
        content = checkpoint.read_bytes()
        known = json.loads(content)["Data"]["RegisteredDevices"] or {}
        others = sorted(known.keys() - own)
    except FileNotFoundError:
        return f"nothing to do: the kubelet has no {checkpoint}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"nothing to do: no kubelet can read {checkpoint}"
    if others:
        return (
            f"nothing done: the kubelet also knows {', '.join(others)}. If it forgot them, pods could start "
            "without these devices. So it may refuse pods with a GPU"
        )
    replace_file(checkpoint.with_name(COPY), content, mode=0o600)  # as the kubelet's own
    replace_file(checkpoint, UNREADABLE, mode=0o600)
    return f"the kubelet's {checkpoint.name} is {UNREADABLE} until a plugin registers: no pod is refused"
