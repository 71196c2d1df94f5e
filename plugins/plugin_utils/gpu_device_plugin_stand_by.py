# SPDX-License-Identifier: Apache-2.0
"""The pod of the device plugin as a container that starts with the board's Docker and stands by.

After a boot the kubelet refuses pods with a GPU until its device plugin has registered, and it starts the
plugin's own pod at the same time as theirs (kubernetes#125579). The container is there before the kubelet.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

PLUGIN = "tegra-device-plugin"
# The ENTRYPOINT of its image, which `docker exec` does not add.
PROGRAM = ("python3.11", "-m", "tegra_device_plugin")
# Where the plugin's settings are on the board, for the ConfigMap's volume.
CONFIG_DIRECTORY = "/var/lib/jetson-k3s/device-plugin"
CONFIG_FILE = f"{CONFIG_DIRECTORY}/config.yaml"
# Empty when Docker starts the container after a boot. No kubelet has made its directories there yet.
VOLATILE = "/run/"

# Kubernetes' suffixes of bytes; Docker's own k, m and g mean the same.
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# Ten times the weight of K3s (Docker's default is 1024). It takes a few milliseconds, but without delay: from
# the start of the kubelet's device manager until the first container starts it has a second, and a boot keeps
# all cores busy. The pod's request (10m) would be a hundredth of the weight of K3s.
CPU_SHARES = 10 * 1024

# What is read below, and what is Kubernetes' own business.
KNOWN_OF_POD = {
    "nodeSelector", "priorityClassName", "tolerations", "automountServiceAccountToken", "enableServiceLinks",
    "terminationGracePeriodSeconds", "containers", "volumes", "securityContext",
}  # fmt: skip
KNOWN_OF_CONTAINER = {
    "name", "image", "imagePullPolicy", "args", "ports", "livenessProbe", "readinessProbe", "resources",
    "env", "volumeMounts", "securityContext",
}  # fmt: skip
RIGHTS = {
    "seccompProfile": {"type": "RuntimeDefault"},  # Docker's default, too
    "runAsUser": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

# How the kubelet's device manager keeps what it has allocated (pkg/kubelet/cm/devicemanager/checkpoint).
CHECKPOINT = "kubelet_internal_checkpoint"
# No template of the role, as K3s' unit (k3s_unit.py).
BOOT_UNIT = """\
# Written by Ansible (role gpu_device_plugin).
[Unit]
Description=Let the kubelet refuse no pod with a GPU at this boot
After=docker.service nvpmodel.service
Before=k3s.service k3s-agent.service
# Only for a boot: the kubelet would allocate the GPU of running pods again.
RefuseManualStart=yes

[Service]
Type=oneshot
RemainAfterExit=yes
# After a boot that was cut short.
ExecStartPre=-/bin/sh -c 'cd /var/lib/kubelet/device-plugins && [ "$$(cat {checkpoint})" = "{{}}" ] \
&& mv {checkpoint}.before-boot {checkpoint}'
ExecStart=/usr/bin/docker exec {container} {command}
# K3s starts in any case. The command itself waits for 30 s.
TimeoutStartSec=90

[Install]
WantedBy=multi-user.target
"""


def boot_unit(before_kubelet: list[str]) -> str:
    """The unit that runs this command in the container before the kubelet starts."""
    return BOOT_UNIT.format(checkpoint=CHECKPOINT, container=PLUGIN, command=" ".join(before_kubelet))


def stand_by(manifest: str, tmpfiles: str) -> dict[str, Any]:
    """Give the image, options of `docker create`, arguments, the settings, and what it needs on the board.

    `before_kubelet`: the command in that container that lets the kubelet refuse no pod at a boot. `files`:
    entries of module file_set. `tmpfiles`: the path for the directories that are made at each boot.
    `manifest` is the role's own, of the board's configuration alone. AnsibleFilterError names what it has
    that is not known here: it would be missing in the container.
    """
    documents = list(yaml.safe_load_all(manifest))
    (daemonset,) = (
        one
        for one in documents
        if one["kind"] == "DaemonSet" and one["metadata"]["labels"]["app.kubernetes.io/name"] == PLUGIN
    )
    spec = daemonset["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    unknown = (spec.keys() - KNOWN_OF_POD) | (container.keys() - KNOWN_OF_CONTAINER)
    if unknown:
        raise AnsibleFilterError(f"the device plugin's pod has {sorted(unknown)}, its container would not")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = [mount(volumes[one["name"]], one) for one in container["volumeMounts"]]
    paths = (volumes[one["name"]].get("hostPath", {}) for one in container["volumeMounts"])
    directories = sorted(path["path"] for path in paths if path.get("type") == "DirectoryOrCreate")
    short = (path.replace("/var/run/", VOLATILE) for path in directories)  # a link to it
    volatile = "".join(f"d {path} 0755\n" for path in short if path.startswith(VOLATILE))
    configs = (one["data"] for one in documents if one["kind"] == "ConfigMap")
    config = next((text for data in configs for text in data.values()), "")
    arguments = [one for one in container["args"] if not one.startswith("--metrics-address=")]
    return {
        "image": container["image"],
        "options": [
            # The metrics are the pod's, which serves whenever it runs. So no network is needed.
            "--network=none",
            # Not NVIDIA's, where that is the default: the plugin needs no GPU.
            "--runtime=runc",
            # `docker logs` shows what one of these has written.
            *("--log-driver=json-file", "--log-opt=max-size=1m", "--log-opt=max-file=2"),
            *rights(spec["securityContext"], container["securityContext"]),
            *limits(container["resources"]),
            *(f"--env={one['name']}={one['value']}" for one in container.get("env", [])),
            *(f"--mount={one}" for one in mounts),
        ],
        "arguments": [*arguments, "--stand-by"],
        "before_kubelet": [*PROGRAM, "before-kubelet", *arguments[1:]],
        "files": [
            # What the kubelet would make for the pod.
            *({"path": path, "directory": True, "mode": "0755"} for path in [*directories, CONFIG_DIRECTORY]),
            {"path": tmpfiles, **({"content": volatile, "mode": "0644"} if volatile else {"absent": True})},
            {"path": CONFIG_FILE, "content": config, "mode": "0644"},
        ],
        "config_file": CONFIG_FILE,
        "config": config,
    }


def rights(pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
    """Options for these two securityContexts."""
    found = {**pod, **container}
    if found != RIGHTS:
        raise AnsibleFilterError(f"the device plugin's pod has the rights {json.dumps(found)}")
    return ["--user=0", "--security-opt=no-new-privileges", "--read-only", "--cap-drop=ALL"]


def limits(resources: dict[str, Any]) -> list[str]:
    """Options for a container's limits, and its weight."""
    memory = resources["limits"]["memory"]
    return [f"--memory={int(memory[:-2]) * UNITS[memory[-2:]]}", f"--cpu-shares={CPU_SHARES}"]


def mount(volume: dict[str, Any], mounted: dict[str, Any]) -> str:
    """The value of --mount for a pod's volume."""
    source = CONFIG_DIRECTORY if "configMap" in volume else volume["hostPath"]["path"]
    read_only = ",readonly" if mounted.get("readOnly") else ""
    return f"type=bind,source={source},target={mounted['mountPath']}{read_only}"


FILTERS = {"gpu_device_plugin_boot_unit": boot_unit, "gpu_device_plugin_stand_by": stand_by}
