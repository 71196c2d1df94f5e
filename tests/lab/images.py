# SPDX-License-Identifier: Apache-2.0
"""The image of a virtual board: a Debian root file system.

It has systemd, SSH, a Docker engine of its own, and the CNI plugins where K3s finds them; no K3s,
nothing of NVIDIA.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.lab import gomodules, k3s
from tools.cache import locked
from tools.debian import rootfs
from tools.engine import LABEL, docker
from tools.process import step

REPOSITORY = "jetson-k3s-lab/board"
USER = "jetson"
SUDO_PASSWORD = "of-the-lab"
SUDO_RULE = f"/etc/sudoers.d/{USER}"

PACKAGES = (
    "systemd", "systemd-sysv", "dbus",
    "openssh-server", "sudo", "python3",
    "docker.io", "iptables", "conntrack", "socat", "openssl", "gpg",
    "iproute2", "iputils-ping", "kmod", "procps", "ca-certificates", "curl", "less",
)  # fmt: skip

SSHD_FILE = "/etc/ssh/sshd_config.d/lab.conf"
SSHD_CONFIG = "PasswordAuthentication no\\nUseDNS no\\nAuthorizedKeysFile /etc/ssh/authorized_keys/%%u\\n"
# Of a board as flashed: with sshd's own place for keys.
FLASHED_SSHD = "PasswordAuthentication yes\\nUseDNS no\\n"

CUSTOMIZE = (
    f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo {USER}',
    # A board whose sudo asks for the password gets an empty file in place of this one.
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" > "$1{SUDO_RULE}"',
    f'echo "{USER}:{SUDO_PASSWORD}" | chroot "$1" chpasswd',
    # Every board gets SSH host keys of its own; the package made some while it was installed.
    'rm "$1"/etc/ssh/ssh_host_*',
    f'printf "{SSHD_CONFIG}" > "$1{SSHD_FILE}"',
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
    # A release has them inside, and K3s finds them in PATH.
    plugins = f'cp "{gomodules.programs(k3s.CNI, arch)}"/* "$1/usr/local/bin/"'
    return rootfs("board", packages, customize=(*customize, plugins), arch=arch)


def board_image() -> str:
    """Return the reference of the board's image, imported into the engine; outdated ones go."""
    tar = board_rootfs()
    reference = f"{REPOSITORY}:{tar.stem.rsplit('-', 1)[1]}"
    with locked("board-image"):
        known = docker("image", "ls", REPOSITORY, "--format={{.Repository}}:{{.Tag}}").split()
        if reference not in known:
            with step("importing the image of the boards into Docker"):
                docker(
                    "import",
                    "--change=ENV container=docker",
                    f"--change=LABEL {LABEL}.image=board",
                    tar,
                    reference,
                    timeout=None,  # half a gigabyte: minutes on a slow disk
                )
            for outdated in known:
                # Fails for one that another lab's boards still use.
                docker("image", "rm", outdated, check=False)
    return reference
