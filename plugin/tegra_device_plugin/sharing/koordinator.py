# SPDX-License-Identifier: Apache-2.0
"""The GPU in the format of Koordinator's node agent, koordlet, and as the Device that koordlet makes of it.

Read in koordinator-sh/koordinator, pkg/koordlet: metricsadvisor/devices/xpu reads the files, and
statesinformer/impl/states_device_linux.go makes the Device of them. Device: config/crd/bases. Labels:
apis/extension/device_share.go. Not tried with a koordlet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.units import PERCENT, Units
from tegra_device_plugin.sharing.allocation import GPU_ID
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.kubernetes import label_value, render_quantity
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

# The directory xpu-device-infos below it is koordlet's XPUDeviceInfosDir.
DIRECTORY = "/var/run/koordlet"
FILE = f"{DIRECTORY}/xpu-device-infos/tegra-device-plugin.json"
# In bytes, so it is not advertised to the kubelet.
_MEMORY = "koordinator.sh/gpu-memory"
_WRITE_DEADLINE_SECONDS = 3.0
MANAGED_BY = "jetson-k3s"


class Koordlet:
    """Koordinator's agent on the host."""

    def __init__(self) -> None:
        self._blocking = BlockingCalls(_WRITE_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()

    async def report(self, settings: PluginSettings, found: Detection, health: Health) -> None:
        """With the preset koordinator, write the GPU's file, or log the reason for a failure."""
        if settings.units is None or settings.units.preset != "koordinator":
            return
        infos = device_infos(found, settings.units, health)
        try:
            await self._blocking.run(lambda: write(settings.host_root, infos))
        except (OSError, TimeoutError) as error:
            self._problem_log.warn(f"koordlet has no GPU: {describe_error(error, 'the write hangs')}")
        else:
            self._problem_log.resolved("koordlet has the GPU again")


def write(root: Path, infos: list[dict[str, Any]]) -> None:
    """Write koordlet's file on the host seen at `root`, if koordlet's directory is there. Raises OSError."""
    host = HostTree(root)
    if host.link(DIRECTORY) is None:
        return
    text = json.dumps(infos, indent=2) + "\n"
    file = Path(f"{host.real(DIRECTORY)}{FILE.removeprefix(DIRECTORY)}")
    file.parent.mkdir(exist_ok=True)
    # koordlet reads every file of the directory, and rejects all files if one is incomplete.
    update_file(file, text, staged_in=file.parent.parent)


def device_infos(found: Detection, units: Units, health: Health) -> list[dict[str, Any]]:
    """Give the GPU. Model and error code are valid as label and condition, which koordlet makes of them."""
    status: dict[str, Any] = {"healthy": health.healthy}
    if not health.healthy:
        code = "".join(word.capitalize() for word in health.reason.split("-"))
        status |= {"errCode": code, "errMessage": health.detail}
    shares = {name: str(PERCENT) for name in units.resources}
    return [
        {
            "vendor": "nvidia",
            "model": label_value(found.board.module or found.gpu.chip or found.board.soc or "Tegra"),
            "uuid": GPU_ID,
            "minor": "0",
            "resources": shares | {_MEMORY: render_quantity(units.memory_total)},
            "status": status,
        }
    ]


def device(node: str, infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the Device that koordlet would make of `infos` for a node, with this project as its manager.

    koordlet replaces the labels when it takes the Device over.
    """
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY}
    for info in infos:
        labels |= {f"node.koordinator.sh/gpu-{key}": info[key] for key in ("vendor", "model")}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, "labels": labels},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": info["uuid"],
                    "minor": int(info["minor"]),
                    "health": info["status"]["healthy"],
                    "resources": info["resources"],
                }
                for info in infos
            ]
        },
    }
