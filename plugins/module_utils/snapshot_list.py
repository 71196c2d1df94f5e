# SPDX-License-Identifier: Apache-2.0
"""What a snapshot of a board has: the one list of files, device nodes and commands.

No file is in it that has a secret and nothing else, such as a kubeconfig, a token or the environment file of
K3s. No file of the GPU is in it whose read wakes or occupies the GPU.

Runs on the board, therefore Python 3.6 compatible. The device plugin has this file, too, by a link.
"""

import re
from typing import NamedTuple, Optional, Pattern, Tuple

# How much of a file is read, in bytes. An attribute of sysfs has at most a page.
PAGE, SETTINGS, LARGE = 4096, 64 * 1024, 512 * 1024

Files = NamedTuple(
    "Files",
    [
        ("kind", str),  # `data` as it is; `text` redacted; `stat` without its content
        ("limit", int),  # bytes
        ("patterns", Tuple[str, ...]),  # `*`, `?` and `[...]` stand for characters of one name
    ],
)
Program = NamedTuple(
    "Program",
    [
        ("name", str),  # in the snapshot
        ("argv", Tuple[str, ...]),
        ("only", Optional[Pattern[str]]),  # lines without a match are left out
    ],
)

_TREE = "/sys/firmware/devicetree/base"
# Each place where the plugin searches for the GPU (its board/detection.py).
_GPUS = (
    "/sys/class/devfreq/*/device",
    "/sys/bus/platform/drivers/gk20a/*.*",
    "/sys/bus/platform/devices/*gpu*",
    "/sys/bus/platform/devices/*.g[amptv]*b",
    "/sys/bus/pci/devices/0000:01:00.0",
)
# Not `load`, `config` and the masks `*_fs_mask`: a read of them occupies the GPU, or switches it on.
_OF_GPU = """
    class device driver driver/module enable_3d_scaling gpu_powered_on is_railgated modalias of_node
    of_node/compatible of_node/name power/autosuspend_delay_ms power/control power/runtime_enabled
    power/runtime_status railgate_delay railgate_enable subsystem subsystem_device subsystem_vendor
    tpc_pg_mask uevent vendor devfreq_dev devfreq/*/device devfreq/*/subsystem
""".split()
_OF_DEVFREQ = """
    available_frequencies available_governors cur_freq governor max_freq min_freq polling_interval target_freq
""".split()
_OF_ZONE = (
    "mode policy subsystem temp trip_point_[0-9]*_hyst trip_point_[0-9]*_temp trip_point_[0-9]*_type type"
).split()
_OF_MONITOR = (
    "name in[0-9]*_label in[0-9]*_input curr[0-9]*_input power[0-9]*_input oc[0-9]*_event_cnt"
).split()

FILES = (
    Files(
        "data",
        PAGE,
        (
            *("{}/{}".format(_TREE, name) for name in ("compatible", "model", "nvidia,dtsfilename")),
            *("/proc/device-tree/{}".format(name) for name in ("compatible", "model")),
            *("/sys/devices/soc0/{}".format(name) for name in ("family", "machine", "revision", "soc_id")),
            *("{}/{}".format(gpu, name) for gpu in _GPUS for name in _OF_GPU),
            *("/sys/class/devfreq/*/{}".format(name) for name in _OF_DEVFREQ),
            *("/sys/class/thermal/thermal_zone*/{}".format(name) for name in _OF_ZONE),
            # Power, throttling: what the plugin's boardMetrics read.
            *(
                "/sys/class/thermal/cooling_device*/{}".format(name)
                for name in ("cur_state", "max_state", "type")
            ),
            *("/sys/class/hwmon/hwmon*/{}".format(name) for name in _OF_MONITOR),
            *(
                "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/{}".format(name)
                for name in ("rail_name_[0-9]*", "in_power[0-9]*_input")
            ),
            *(
                "/sys/module/{}/{}".format(name, one)
                for name in ("nvgpu", "nvidia")
                for one in ("initstate", "version")
            ),
            *("/sys/module/{}/parameters/*".format(name) for name in ("nvgpu", "nvidia")),
            # Cards beside the integrated GPU (the plugin's board/cards.py).
            *("/sys/bus/pci/devices/*/{}".format(name) for name in ("class", "vendor")),
            *("/sys/class/{}/*/device".format(name) for name in ("drm", "graphics")),
            "/etc/nv_tegra_release",
            "/proc/meminfo",
            "/proc/cgroups",
            "/proc/driver/nvidia/version",
            "/sys/fs/cgroup/cgroup.controllers",
            "/var/lib/nvpmodel/status",
        ),
    ),
    Files("data", LARGE, ("/proc/config.gz",)),
    Files(
        "text",
        SETTINGS,
        (
            "/proc/cmdline",
            "/proc/driver/nvidia/gpus/*/information",
            "/proc/version",
            "/etc/os-release",
            "/etc/nvpmodel.conf",
            "/etc/nvidia-container-runtime/config.toml",
            "/etc/nvidia-container-runtime/host-files-for-container.d/*.csv",
            "/etc/cdi/*.yaml",
            "/etc/cdi/*.json",
            "/var/run/cdi/*.yaml",
            "/var/run/cdi/*.json",
            "/etc/docker/daemon.json",
            "/etc/rancher/k3s/config.yaml",
            "/etc/rancher/k3s/config.yaml.d/*.yaml",
            "/etc/rancher/k3s/registries.yaml",
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "/lib/systemd/system/docker.service",
            "/lib/systemd/system/nvpmodel.service",
            *(
                "/etc/systemd/system/{}.service{}".format(unit, drop_in)
                for unit in ("docker", "jtop", "k3s", "k3s-agent", "tegra-device-plugin-boot")
                for drop_in in ("", ".d/*.conf")
            ),
            "/etc/udev/rules.d/*tegra*.rules",
            "/etc/udev/rules.d/*nvidia*.rules",
        ),
    ),
    Files(
        "stat",
        0,
        (
            *(
                "/dev/{}".format(name)
                for name in ("nv*", "tegra*", "host1x*", "fb[0-9]*", "v4l2-*", "video[0-9]*")
            ),
            *("/dev/{}".format(name) for name in ("dri/*", "dri/by-path/*", "nvgpu/*/*", "nvidia-caps/*")),
            "/sys/bus/platform/drivers/gk20a/*",
            "/sys/bus/platform/devices/*",
            "/sys/class/devfreq/*",
            "/proc/driver/nvidia/gpus",
            "/usr/lib/aarch64-linux-gnu/libcuda.so*",
            "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so*",
            "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so*",
            "/var/lib/simulated-tegra",
        ),
    ),
)
# The device tree's serial number is read to be replaced wherever it is, and is in no snapshot.
SERIALS = (
    _TREE + "/serial-number",
    "/proc/device-tree/serial-number",
    "/sys/devices/soc0/serial_number",
    "/etc/machine-id",
    "/proc/sys/kernel/random/boot_id",
)
HOSTNAME = "/etc/hostname"
PACKAGES = "/var/lib/dpkg/status"
PACKAGES_LIMIT = 32 * 1024 * 1024

_OF_UNIT = (
    "--property=Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts,FragmentPath,DropInPaths"
)
_LINES = 1000
_GPU_LINE = re.compile(r"nvgpu|nvidia|nvmap|tegra|gk20a|host1x|\bg[amptv]\d?\w\db\b|\bgpu\b", re.IGNORECASE)
_JOURNALS = ("docker", "k3s", "k3s-agent", "jtop")

PROGRAMS = (
    Program("kernel", ("uname", "-srvm"), None),
    Program("docker-version", ("docker", "version"), None),
    Program("docker-info", ("docker", "info"), None),
    Program("nvidia-container-runtime", ("nvidia-container-runtime", "--version"), None),
    Program("nvidia-ctk", ("nvidia-ctk", "--version"), None),
    Program("nvpmodel", ("nvpmodel", "-q"), None),
    Program("k3s", ("k3s", "--version"), None),
    Program(
        "units",
        ("systemctl", "show", "--no-pager", _OF_UNIT, *("{}.service".format(one) for one in _JOURNALS)),
        None,
    ),
    *(
        Program(
            "journal-{}".format(one),
            (
                "journalctl",
                "--unit={}.service".format(one),
                "--lines={}".format(_LINES),
                "--no-pager",
                "--output=short-iso",
            ),
            None,
        )
        for one in _JOURNALS
    ),
    Program("kernel-messages", ("dmesg",), _GPU_LINE),
)
