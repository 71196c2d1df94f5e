# SPDX-License-Identifier: Apache-2.0
"""Images of Debian root file systems: the board's, and one with a runtime that reads CDI specs.

The board has systemd, SSH, a Docker engine of its own, and the CNI plugins where K3s finds them; no K3s,
nothing of NVIDIA.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.lab import k3s
from tools.cache import locked
from tools.debian import rootfs
from tools.engine import LABEL, docker
from tools.process import step

REPOSITORIES = "jetson-k3s-lab"
USER = "jetson"

PACKAGES = (
    "systemd", "systemd-sysv", "dbus",
    "openssh-server", "sudo", "python3",
    "docker.io", "iptables", "conntrack", "socat", "openssl", "gpg",
    "iproute2", "iputils-ping", "kmod", "procps", "ca-certificates", "curl", "less",
)  # fmt: skip

SSHD_CONFIG = "PasswordAuthentication no\\nUseDNS no\\nAuthorizedKeysFile /etc/ssh/authorized_keys/%%u\\n"

CUSTOMIZE = (
    f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo {USER}',
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" > "$1/etc/sudoers.d/{USER}"',
    # Every board gets SSH host keys of its own; the package made some while it was installed.
    'rm "$1"/etc/ssh/ssh_host_*',
    f'printf "{SSHD_CONFIG}" > "$1/etc/ssh/sshd_config.d/lab.conf"',
    # Empty, not absent: absent means first boot, whose presets start units that wait for minutes.
    ': > "$1/etc/machine-id"',
    # Nothing on a virtual board for these to do; they cost boot time or fail without hardware.
    'chroot "$1" systemctl mask getty.target console-getty.service systemd-logind.service apt-daily.timer '
    "apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer "
    "systemd-networkd-wait-online.service",
)


def board_rootfs(
    packages: Sequence[str] = PACKAGES, customize: Sequence[str] = CUSTOMIZE, arch: str = "amd64"
) -> Path:
    """Return the cached tar of a board's root file system."""
    # A release has them inside, and K3s looks for them in PATH.
    plugins = f'cp "{k3s.cni_plugins(arch)}"/* "$1/usr/local/bin/"'
    return rootfs("board", packages, customize=(*customize, plugins), arch=arch)


def board_image() -> str:
    """Return the reference of the board's image, imported into the engine when it is not there yet."""
    return _imported("board", board_rootfs())


def cdi_reader_image() -> str:
    """Return the reference of an image with a runtime that knows CDI: Debian's Podman and crun."""
    return _imported("cdi-reader", rootfs("cdi-reader", ("podman", "crun")))


def _imported(name: str, tar: Path) -> str:
    """Return the reference of a root file system's image; outdated ones of the same name go."""
    repository = f"{REPOSITORIES}/{name}"
    reference = f"{repository}:{tar.stem.rsplit('-', 1)[1]}"
    with locked(f"{name}-image"):
        known = docker("image", "ls", repository, "--format={{.Repository}}:{{.Tag}}").split()
        if reference not in known:
            with step(f"importing the image {name} into Docker"):
                docker(
                    "import",
                    "--change=ENV container=docker",
                    f"--change=LABEL {LABEL}.image={name}",
                    tar,
                    reference,
                    timeout=None,  # half a gigabyte: minutes on a slow disk
                )
            for outdated in known:
                # Fails for one that another lab's boards still use.
                docker("image", "rm", outdated, check=False)
    return reference
