# SPDX-License-Identifier: Apache-2.0
"""Board and GPU together: what `tegra-device-plugin detect` says."""

from pathlib import Path
from typing import Any, NamedTuple

from tegra_device_plugin.board.gpu import Gpu, Power, find_gpu
from tegra_device_plugin.board.identity import Board, Evidence, identify


class Detection(NamedTuple):
    """What was found below a host root."""

    board: Board
    gpu: Gpu
    power: Power = Power()
    """Nothing known, unless it was asked for."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """All places looked at, in order."""
        return (*self.board.evidence, *self.gpu.evidence)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form of `detect`."""
        board, gpu = self.board, self.gpu
        return {
            "platform": board.platform,
            "soc": board.soc,
            "l4t": board.l4t,
            "jetpack": board.jetpack,
            "module": board.module,
            "model": board.model,
            "gpu": {
                "chip": gpu.chip,
                "compute_capability": gpu.compute_capability,
                "state": gpu.state,
                "sysfs": gpu.sysfs,
                "device_nodes": list(gpu.device_nodes),
                "memory_bytes": gpu.memory_bytes,
            },
            "evidence": [entry._asdict() for entry in self.evidence],
        }


def detect(root: Path) -> Detection:
    """Identify the board below the host root `root` and find its GPU."""
    board = identify(root)
    return Detection(board, find_gpu(root, board))
