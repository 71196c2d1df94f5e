# SPDX-License-Identifier: Apache-2.0
"""What an emulated board boots from: Debian's arm64 kernel, a small initrd, a disk with the board's packages.

All from Debian's archive, cached. Nothing of one board is on the disk: its keys, its name and the simulated
Tegra come later.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from images.arm64 import emulation
from tests.lab import images, k3s
from tools import debian
from tools.cache import cached
from tools.debian import ensure_packages
from tools.process import run, step

ARCH = "arm64"
# Besides a container board's: udev names the network's interface.
PACKAGES = (*images.PACKAGES, "udev")
# The simulated Tegra is merged into /sys by overlays. systemd takes only sysfs itself for /sys without
# this variable (its docs/ENVIRONMENT.md): it would lose every device with the first overlay.
SYSFS = "SYSTEMD_DEVICE_VERIFY_SYSFS=0"
MANAGER = f"[Manager]\nManagerEnvironment={SYSFS}\nDefaultEnvironment={SYSFS}\n"
CUSTOMIZE = (*images.CUSTOMIZE, 'chroot "$1" systemctl enable systemd-networkd')
KERNEL = "linux-image-arm64"
# Parts of the kernel's modules that no virtual board has hardware for: four fifths of 300 MB.
UNUSED = (
    *debian.EXCLUDED,
    "/usr/lib/debug/*",
    "/lib/modules/*/kernel/sound/*",
    *(
        f"/lib/modules/*/kernel/drivers/{area}/*"
        for area in (
            "gpu", "media", "infiniband", "staging", "iio", "scsi", "usb", "hwmon", "ata", "mtd", "mmc",
            "nfc", "isdn", "bluetooth", "input", "target", "video", "soundwire", "phy", "pinctrl", "clk",
            "soc", "regulator", "net/wireless", "net/ethernet", "net/can", "net/usb",
        )
    ),
)  # fmt: skip
# What the root file system needs; modprobe adds what these need.
INITRD_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox modprobe "$module"; done
tries=0
until [ -b /dev/vda ] || [ "$tries" = 100 ]; do tries=$((tries + 1)); /bin/busybox sleep 0.1; done
/bin/busybox mount /dev/vda /root || exec /bin/busybox sh
/bin/busybox umount /proc /sys
/bin/busybox mount --move /dev /root/dev
# The board's own files: a disk that it has at its first boot.
[ ! -b /root/dev/vdb ] || /bin/busybox chroot /root /bin/tar --extract --file=/dev/vdb
exec /bin/busybox switch_root /root /lib/systemd/systemd
"""
DISK_SIZE = "12G"  # sparse: it takes what is written


@dataclass(frozen=True)
class Assets:
    """The files that QEMU is given."""

    kernel: Path
    initrd: Path
    disk: Path


def assets() -> Assets:
    """Return the cached kernel, initrd and disk, built when absent (some minutes: arm64 programs run)."""
    plugins = k3s.CNI.digest()
    recipe = json.dumps([debian.SUITE, PACKAGES, CUSTOMIZE, plugins, Path(__file__).read_text()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    directory = cached(f"arm64/disk-{digest}", _build)
    return Assets(directory / "vmlinuz", directory / "initrd.gz", directory / "disk.img")


def _build(out: Path) -> None:
    emulation.ensure(ARCH)
    # mmdebstrap asks arch-test whether the architecture's programs run here.
    ensure_packages("cpio", "kmod", "e2fsprogs", "arch-test")
    userland = images.board_rootfs(PACKAGES, CUSTOMIZE, ARCH)
    out.mkdir()
    work = out.parent
    kernel = work / "kernel"
    with step("unpacking Debian's arm64 kernel"):
        packed = work / "kernel.tar"
        debian.mmdebstrap(packed, "extract", ARCH, [KERNEL, "busybox-static"], excluded=UNUSED)
        _extract(packed, kernel)
        packed.unlink()
    image = next((kernel / "boot").glob("vmlinuz-*"))
    version = image.name.removeprefix("vmlinuz-")
    run(["depmod", "-b", kernel, version])
    shutil.copyfile(image, out / "vmlinuz")
    _initrd(kernel, version, work / "initrd", out / "initrd.gz")
    with step("making the disk of an emulated board"):
        root = work / "root"
        _extract(userland, root)
        shutil.move(kernel / "lib/modules", root / "usr/lib/modules")
        settings = root / "etc/systemd/system.conf.d/simulated-sysfs.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(MANAGER)
        run(["mke2fs", "-q", "-t", "ext4", "-d", root, out / "disk.img", DISK_SIZE])


def _extract(packed: Path, directory: Path) -> None:
    """Unpack a tar as it is: owners, modes, links; device nodes are the kernel's to make."""
    directory.mkdir()
    places = (f"--file={packed}", f"--directory={directory}", "--exclude=./dev/*")
    run(["tar", "--extract", "--numeric-owner", *places])


def _initrd(kernel: Path, version: str, tree: Path, out: Path) -> None:
    """Write a gzipped cpio archive that mounts /dev/vda and goes on there."""
    for directory in ("bin", "proc", "sys", "dev", "root", "sbin"):
        (tree / directory).mkdir(parents=True)
    shutil.copy(kernel / "bin/busybox", tree / "bin/busybox")
    (tree / "init").write_text(INIT.format(modules=" ".join(INITRD_MODULES)))
    (tree / "init").chmod(0o755)
    modules = Path("lib/modules") / version
    shown = run(["modprobe", "-d", kernel, "-S", version, "--show-depends", "--all", *INITRD_MODULES]).stdout
    for line in shown.splitlines():
        words = line.split()
        if words[0] == "insmod":
            source = Path(words[1])
            target = tree / source.relative_to(kernel)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for index in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copyfile(kernel / modules / index, tree / modules / index)
    run(["depmod", "-b", tree, version])
    run(["sh", "-c", 'cd "$1" && find . | cpio --quiet -o -H newc | gzip -9 > "$2"', "sh", tree, out])
