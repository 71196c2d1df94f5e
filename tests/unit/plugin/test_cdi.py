# SPDX-License-Identifier: Apache-2.0
"""CDI specs from a simulated board's CSV files."""

import json
import os
from pathlib import Path

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import detect

from tests import boards


@pytest.fixture
def root(tmp_path: Path) -> Path:
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    boards.write_run(tmp_path)
    return tmp_path


def spec_file(root: Path) -> Path:
    return root / "run/cdi/tegra-device-plugin.json"


def csv_directory(root: Path) -> Path:
    return root / "etc/nvidia-container-runtime/host-files-for-container.d"


LISTS = """dev, /dev/nvmap
dev, /dev/nvgpu
dev, /dev/absent
lib, /usr/lib/libcuda.so.1
lib, /usr/lib/absent.so
lib, /lib/firmware/gpu.bin
dir, /usr/share/nvidia
sym, /usr/lib/libcuda.so
"""


def test_the_whole_spec_of_a_small_host(tmp_path: Path) -> None:
    for name in ("dev/nvgpu", "usr/share/nvidia", "usr/lib", "lib/firmware", "etc"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dev/nvmap", "usr/lib/libcuda.so.1", "lib/firmware/gpu.bin", "etc/nv_tegra_release"):
        (tmp_path / name).touch()
    (tmp_path / "usr/lib/libcuda.so").symlink_to("libcuda.so.1")
    csv_directory(tmp_path).mkdir(parents=True)
    (csv_directory(tmp_path) / "lists.csv").write_text(LISTS)
    (csv_directory(tmp_path) / "lists.csv.old").write_text("dir, /etc\n")

    def hook(*arguments: str) -> dict[str, object]:
        command = ["nvidia-ctk", "hook", *arguments]
        return {"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": command}

    mounted = ("/usr/lib/libcuda.so.1", "/lib/firmware/gpu.bin", "/usr/share/nvidia", "/etc/nv_tegra_release")
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    nodes = {"deviceNodes": [{"path": "/dev/extra"}, {"path": "/dev/nvmap"}]}
    assert cdi.spec(tmp_path, ("/dev/extra",)) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": nodes}, {"name": "all", "containerEdits": nodes}],
        "containerEdits": {
            "mounts": [{"hostPath": path, "containerPath": path, "options": options} for path in mounted],
            "hooks": [
                hook("create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"),
                hook("update-ldcache", "--folder", "/usr/lib"),
            ],
        },
    }


def test_version_0_7_has_the_groups_that_may_open_the_nodes(root: Path) -> None:
    for name, group, mode in (
        ("nvmap", 44, 0o660),
        ("nvsciipc", 44, 0o660),
        ("nvidia0", 55, 0o666),
        ("nvidiactl", 66, 0o640),
    ):
        os.chown(root / "dev" / name, 0, group)
        (root / "dev" / name).chmod(mode)
    (root / "dev/nvhost-gpu").chmod(0o660)  # of root's own group
    old, new = (cdi.spec(root, ("/dev/gone",), version) for version in (cdi.OLDEST, cdi.WITH_GROUPS))
    assert (old["cdiVersion"], new["cdiVersion"]) == ("0.5.0", "0.7.0")
    for before, after in zip(old["devices"], new["devices"], strict=True):
        assert after["containerEdits"] == {**before["containerEdits"], "additionalGids": [44]}


def test_lines_without_sense_are_skipped(root: Path) -> None:
    before = cdi.spec(root, ())
    nonsense = b"nonsense\n\ndev /dev/nvmap\nfoo, /dev/nvmap\ndev, relative\n,\nsym, /etc\n\xff\xfe\n"
    nonsense += b"lib, /usr/lib/\0\nsym, /usr/\0/x\ndev, /dev/\0*\n" + bytes(99)
    (csv_directory(root) / "zz.csv").write_bytes(nonsense)
    assert cdi.spec(root, ()) == before
    (csv_directory(root) / "zz.csv").write_text("nonsense\ndir, /etc\n")
    assert cdi.spec(root, ()) != before


def test_a_line_that_is_cut_off_is_no_path(tmp_path: Path) -> None:
    csv_directory(tmp_path).mkdir(parents=True)
    (tmp_path / "etc/secrets").mkdir()
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/libcuda.so.1").touch()
    whole, part = "dir, /opt\n", "dir, /etc"
    cut = (1 << 20) - len(whole + part)
    (csv_directory(tmp_path) / "huge.csv").write_text("\n" * cut + whole + part + "/secrets\n")
    mounts = cdi.spec(tmp_path, ())["containerEdits"]["mounts"]
    assert [mount["containerPath"] for mount in mounts] == ["/opt"]


def test_absolute_links_stay_on_the_host(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("container")
    (elsewhere / "secret.so").touch()
    (root / "opt").mkdir()
    (root / "opt/here.so").touch()
    (root / "links").symlink_to("/opt")
    (root / "outside").symlink_to(elsewhere)
    (csv_directory(root) / "zz.csv").write_text("lib, /links/*.so\nlib, /outside/*.so\nsym, /outside\n")
    spec = cdi.spec(root, ())
    mounts = [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]
    assert "/links/here.so" in mounts
    assert not [path for path in mounts if "secret" in path]
    assert f"{elsewhere}::/outside" in spec["containerEdits"]["hooks"][0]["args"]


def test_an_unchanged_spec_is_not_written(root: Path) -> None:
    cdi.write(root, ())
    before = spec_file(root).stat()
    cdi.write(root, ())
    after = spec_file(root).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    cdi.write(root, ("/dev/more",))
    assert "/dev/more" in json.dumps(json.loads(spec_file(root).read_text()))
    assert [path.name for path in spec_file(root).parent.iterdir()] == [spec_file(root).name]


@pytest.mark.parametrize("library", ["removed", "a link to nothing", "not in the lists"])
def test_a_spec_without_the_drivers_library_is_refused(root: Path, library: str) -> None:
    cdi.write(root, ())
    before = spec_file(root).read_bytes()
    drivers = root / "usr/lib/aarch64-linux-gnu/nvidia"
    if library == "not in the lists":
        (csv_directory(root) / "drivers.csv").unlink()
    else:
        (drivers / "libcuda.so.1.1").unlink()
    if library == "a link to nothing":
        (drivers / "libcuda.so.1.1").symlink_to("libcuda.so.gone")
    with pytest.raises(cdi.NoDriverLibraryError) as refused:
        cdi.write(root, ())
    searched = "they name no such file" if library == "not in the lists" else "nvidia/libcuda.so.1.1"
    assert searched in str(refused.value)
    assert "/etc/nvidia-container-runtime/host-files-for-container.d" in str(refused.value)
    assert spec_file(root).read_bytes() == before
    spec_file(root).unlink()
    health = cdi.SpecFile(root).provide(detect(root), renew=True)
    assert (health.healthy, health.reason) == (False, "cdi-missing")
    assert "libcuda.so" in health.detail
    assert not spec_file(root).exists()
