# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus' text format. Values are finite.

The format is a few lines of text. The client library, prometheus_client, takes 3.4 MB of memory, of which the
plugin has 36, and a third to half of the start. Tests compare these lines with those of the library.
"""

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Literal, NamedTuple

from tegra_device_plugin.system.durations import UPPER_BOUNDS, Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Read again by the command `allocations`.
UNUSED = "tegra_gpu_agent_unused_seconds"

HELP = {
    "tegra_device_plugin_held_devices": "Devices that are allocated to the container.",
    "tegra_device_plugin_free_devices": "Healthy devices that no container has.",
    "tegra_device_plugin_weight_percent": "The container's requested share of the GPU's time.",
    "tegra_device_plugin_memory_limit_bytes": "GPU memory that the container may use.",
    "tegra_device_plugin_memory_used_bytes": "GPU memory charged to the container, by its ledger.",
    "vGPU_device_memory_limit_in_bytes": "GPU memory that the container may use.",
    "vGPU_device_memory_usage_in_bytes": "GPU memory charged to the container, by its ledger.",
    "tegra_device_plugin_streams": "ListAndWatch streams that are open.",
    "tegra_device_plugin_devices": "Devices advertised, by health and its reason.",
    "tegra_device_plugin_other_devices": "Devices advertised beside the GPU, such as cameras.",
    "tegra_memory_bytes": "Memory that CPU and GPU share.",
    "tegra_device_plugin_info": "The plugin's version and the board, always 1.",
    "tegra_gpu_load_ratio": "Load of the GPU, 0 to 1.",
    "tegra_gpu_frequency_hertz": "Clock of the GPU.",
    "tegra_gpu_temperature_celsius": "Temperature of the GPU.",
    "tegra_gpu_memory_bytes": "Memory that the GPU uses, by jtop.",
    "tegra_memory_used_bytes": "Memory in use, by jtop.",
    "tegra_jtop_disagreement": "Whether jtop and the board's files disagree in the fact: 1 if they do.",
    "tegra_power_watts": "Power of the rail, as the board measures it.",
    "tegra_temperature_celsius": "Temperature of the thermal zone.",
    "tegra_cooling_state": "How far the cooling device slows the board down: 0 is not at all.",
    "tegra_overcurrent_events_total": "Times that the board was slowed down because of its current.",
    "node_thermal_zone_temp": "Temperature of the thermal zone, in degrees Celsius.",
    "node_cooling_device_cur_state": "How far the cooling device cools: 0 is not at all.",
    "tegra_power_mode": "The mode set by nvpmodel, always 1.",
    "tegra_power_mode_number": "Number of the mode set by nvpmodel.",
    "kepler_node_cpu_watts": "Power of the rail, as the board measures it.",
    "tegra_device_plugin_allocations_total": "Containers that requested devices.",
    "tegra_device_plugin_registrations_total": "Registrations with a kubelet.",
    "tegra_device_plugin_allocate_duration_seconds": "Time of the kubelet's calls of Allocate.",
    "tegra_device_plugin_registration_duration_seconds": "Time of a registration, from the new socket to the "
    "kubelet's answer.",
    "tegra_device_plugin_config_reloads_total": "Times the configuration was read again.",
    "tegra_gpu_agent_info": "The agent's version, mode and policy, always 1.",
    "tegra_gpu_agent_memory_used_bytes": "GPU memory in use, by owner.",
    "DCGM_FI_DEV_FB_USED": "GPU memory in use by processes, in MiB.",
    "gpu_fractioning_gpu_memory_used_bytes": "GPU memory of the pod's processes.",
    "tegra_gpu_agent_container_memory_used_bytes": "GPU memory of the container's processes.",
    "tegra_gpu_agent_weight_percent": "The pod's weight for the GPU's time.",
    "tegra_gpu_agent_over_limit_total": "Times that the pod exceeded its share.",
    "tegra_gpu_agent_ended_processes_total": "Processes of the pod that were ended because of its excess.",
    "tegra_gpu_agent_weights": "Whether GPU time is divided by weights: 1 for the current state.",
    "tegra_gpu_agent_timeslice_seconds": "Time slices of the pod's GPU contexts, added up.",
    "tegra_gpu_agent_contexts": "GPU contexts of the pod that have a time slice.",
    UNUSED: "Time for which the container has had the GPU without GPU memory.",
    "tegra_dra_driver_resource_claims_in_use": "Claims that are prepared on this node.",
    "tegra_dra_driver_prepares_total": "Claims that the kubelet has requested to prepare.",
    "tegra_dra_driver_unprepares_total": "Claims that the kubelet has requested to unprepare.",
    "tegra_dra_driver_call_seconds_total": "Time spent in the kubelet's calls.",
    "tegra_dra_driver_call_duration_seconds": "Time of the kubelet's calls.",
    "tegra_dra_driver_registration_duration_seconds": "Time of a registration, from the kubelet's "
    "first call to its result.",
    "tegra_dra_driver_registrations_total": "Registrations with a kubelet.",
    "tegra_dra_driver_slice_writes_total": "Writes of the ResourceSlice.",
    "tegra_dra_driver_published": "Whether the ResourceSlice is published.",
    "tegra_dra_driver_registered": "Whether the kubelet has the driver.",
    "tegra_dra_driver_gpu_healthy": "Whether the GPU is healthy.",
    "tegra_dra_driver_info": "The driver's version and the board's chip, always 1.",
    "tegra_throttle_taint_throttled": "Whether the board was throttled when its sensors were last read.",
    "tegra_throttle_taint_set": "Whether the node has the taint.",
    "tegra_throttle_taint_writes_total": "Times that the taint was set or removed, or that this failed.",
    "tegra_throttle_taint_info": "The version of the throttle taint's program, always 1.",
    "process_cpu_seconds_total": "Total user and system CPU time spent in seconds.",
    "process_virtual_memory_bytes": "Virtual memory size in bytes.",
    "process_resident_memory_bytes": "Resident memory size in bytes.",
    "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "process_open_fds": "Number of open file descriptors.",
    "process_max_fds": "Maximum number of open file descriptors.",
}
"""The text of each metric of plugin, agent, DRA driver and throttle taint."""

_BOUNDS = (*map(repr, UPPER_BOUNDS), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    samples: tuple[tuple[Mapping[str, str], float], ...] = ()
    suffixes: tuple[str, ...] = ()
    """Of a histogram: what each sample's name adds to the metric's."""


Samples = Iterable[tuple[Mapping[str, str], float]]


def exposition(metrics: Iterable[Metric]) -> str:
    """Give the page; a metric without samples is left out."""
    lines = []
    for metric in metrics:
        if metric.samples:
            lines += [f"# HELP {metric.name} {HELP[metric.name]}", f"# TYPE {metric.name} {metric.kind}"]
            suffixes = metric.suffixes or repeat("")
            lines += [
                f"{metric.name}{suffix}{_labels(labels)} {_number(value)}"
                for (labels, value), suffix in zip(metric.samples, suffixes, strict=False)
            ]
    return "\n".join(lines) + "\n"


def gauge(name: str, value: float | None, **labels: str) -> Metric:
    """Give a gauge with one sample, or with none while the value is not known."""
    return Metric(name, "gauge", () if value is None else ((labels, value),))


def gauges(name: str, samples: Samples) -> Metric:
    return Metric(name, "gauge", tuple(samples))


def counters(name: str, samples: Samples) -> Metric:
    return Metric(name, "counter", tuple(samples))


def histogram(name: str, durations: Durations, **labels: str) -> Metric:
    return histograms(name, ((labels, durations),))


def histograms(name: str, by_labels: Iterable[tuple[Mapping[str, str], Durations]]) -> Metric:
    samples: list[tuple[Mapping[str, str], float]] = []
    suffixes: list[str] = []
    for labels, durations in by_labels:
        counts = durations.cumulative()
        samples += [({**labels, "le": bound}, count) for bound, count in zip(_BOUNDS, counts, strict=True)]
        samples += [(labels, durations.sum), (labels, counts[-1])]
        suffixes += ["_bucket"] * len(counts) + ["_sum", "_count"]
    return Metric(name, "histogram", tuple(samples), tuple(suffixes))


def results(name: str, **values: int) -> Metric:
    return counters(name, (({"result": result}, value) for result, value in values.items()))


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else repr(value)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
