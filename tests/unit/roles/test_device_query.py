# SPDX-License-Identifier: Apache-2.0
"""deviceQuery: its output as every L4T line prints it, and which image a board gets."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import play_text

query = load("gpu_verify/module_utils/gpu_verify_device_query.py")

OUTPUTS = Path(__file__).parent / "device_query"
MIB = 1 << 20


def text(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text()


# File: device, compute capability, multiprocessors, cores of each, bytes.
PASSED: dict[str, tuple[Any, ...]] = {
    "l4t32-nano": ("NVIDIA Tegra X1", "5.3", 1, 128, 4148391936),
    "l4t32-nano-driver-api": ("NVIDIA Tegra X1", "5.3", 1, 128, 4148391936),
    "l4t35-xavier-nx": ("Xavier", "7.2", 6, 64, 7764 * MIB),
    "l4t36-orin-nano": ("Orin", "8.7", 8, 128, 7618 * MIB),
    "l4t38-thor": ("NVIDIA Thor", "11.0", 20, 128, 125517 * MIB),
}


@pytest.mark.parametrize("name", PASSED)
def test_output_of_each_l4t_line_is_read(name: str) -> None:
    found = query.parse(text(name))
    keys = ("device", "compute_capability", "multiprocessors", "cores_per_multiprocessor", "memory_bytes")
    assert tuple(found[key] for key in keys) == PASSED[name]
    assert (found["result"], found["detected"], found["integrated"]) == ("PASS", 1, True)
    assert found["simulated"] is False


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no-device", "CUDA error 100: no CUDA-capable device is detected"),
        ("driver-too-old", "CUDA error 35: CUDA driver version is insufficient for CUDA runtime version"),
        ("driver-api-no-device", "CUDA error 100: no CUDA-capable device is detected"),
    ],
)
def test_failure_is_told_in_cudas_words(name: str, complaint: str) -> None:
    assert query.parse(text(name))["result"] != "PASS"
    assert query.complaint(text(name)) == complaint


def test_other_output_has_its_end_quoted() -> None:
    assert query.parse("sh: deviceQuery: not found\n")["result"] is None
    assert (
        query.complaint("sh: deviceQuery: not found\n") == "its output ends with 'sh: deviceQuery: not found'"
    )


def test_simulated_output_is_marked() -> None:
    assert query.parse("SIMULATED deviceQuery\n" + text("l4t38-thor"))["simulated"] is True


PLAYBOOK = """\
- hosts: all
  gather_facts: false
  vars_files: ["{role}/defaults/main.yml", "{role}/vars/main.yml"]
  tasks:
    - ansible.builtin.set_fact:
        cacheable: true
        jetson: {{arch: aarch64, l4t: "{{{{ l4t }}}}"}}
    - ansible.builtin.set_fact:
        preflight_bundle_info: "{{{{ bundle }}}}"
    - ansible.builtin.copy:
        dest: "{answers}/{{{{ inventory_hostname }}}}"
        content: "{{{{ __gpu_verify_archive }}}} {{{{ __gpu_verify_image }}}}"
"""
FILES = {
    "device-query-arm64.tar.gz": {"images": {"device-query:any": "sha256:1"}},
    "device-query-l4t32-arm64.tar.gz": {"images": {"device-query:r32": "sha256:2"}},
}
# Board: its variables, the bundle's files, and the archive and image that it gets. None: the plugin's.
BOARDS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "nano": ({"l4t": "32.7.1"}, [*FILES], "device-query-l4t32-arm64.tar.gz device-query:r32"),
    "orin": ({"l4t": "36.4.3"}, [*FILES], "device-query-arm64.tar.gz device-query:any"),
    "plain": ({"l4t": "36.4.3"}, [], " "),
}


def test_image_is_the_one_for_the_boards_l4t_line_unless_named_else_the_plugins(tmp_path: Path) -> None:
    text = PLAYBOOK.format(role=ROLES / "gpu_verify", answers=tmp_path)
    boards = {
        name: {**variables, "bundle": {"files": {file: FILES[file] for file in files}}}
        for name, (variables, files, _) in BOARDS.items()
    }
    play_text(tmp_path, text, groups={"boards": boards})
    for name, (_, _, chosen) in BOARDS.items():
        assert (tmp_path / name).read_text() == chosen
