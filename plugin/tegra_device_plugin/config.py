# SPDX-License-Identifier: Apache-2.0
"""Settings of `run`: flag over environment over file over default. Parses, never acts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-cri"]
DeviceIdStrategy = Literal["uuid", "index"]


@dataclass(frozen=True)
class Sharing:
    """Time-slicing: `replicas` containers may hold the GPU at once (1: one at a time)."""

    replicas: int = 1
    fail_requests_greater_than_one: bool = True


@dataclass(frozen=True)
class Settings:
    """Everything that can be chosen."""

    host_root: Path = Path("/")
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    metrics_address: str | None = None
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"
    resource: str = "nvidia.com/gpu"
    device_list_strategies: tuple[DeviceListStrategy, ...] = ("envvar",)
    device_id_strategy: DeviceIdStrategy = "uuid"
    sharing: Sharing = field(default_factory=Sharing)
