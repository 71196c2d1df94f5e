# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of K3s. Ansible's lookup of a template would copy the variables of all boards for each."""

from __future__ import annotations

UNIT = """\
# Written by Ansible (role k3s). K3s reads its configuration from /etc/rancher/k3s; no flags here, they \
would override it.
[Unit]
Description=Lightweight Kubernetes ({role})
Documentation=https://k3s.io
Wants=network-online.target{docker}
# Also beside containerd, if Docker is there: the instance of the device plugin that stands by starts with it.
# nvpmodel switches the GPU on at the boot. Before that the kubelet would refuse pods with a GPU.
After=network-online.target docker.service nvpmodel.service

[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
EnvironmentFile=-/etc/systemd/system/%N.service.env
{environment}\
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s {role}
# Pods outlive a restart of K3s.
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s

[Install]
WantedBy=multi-user.target
"""


def unit(role: str, runtime: str, environment: str) -> str:
    """The unit's text. `environment` is the path of the file with the proxy, '' without a proxy."""
    return UNIT.format(
        role=role,
        docker=" docker.service" if runtime == "docker" else "",
        environment=f"# The last one wins.\nEnvironmentFile=-{environment}\n" if environment else "",
    )
