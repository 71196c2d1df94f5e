# SPDX-License-Identifier: Apache-2.0
"""A real runtime resolves the plugin's CDI devices and makes containers with the GPU by them alone."""

import pytest
from tegra_device_plugin.board import cdi

from tests.cdi.conftest import Reader

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("name", cdi.NAMES)
def test_device_query_passes_by_the_cdi_device_alone(reader: Reader, name: str) -> None:
    ran = reader.run(f"--device={cdi.device(name)}")
    assert ran.returncode == 0, ran.stderr
    assert "Result = PASS" in ran.stdout
    assert reader.fixture.data["devicequery_name"] in ran.stdout
    assert "SIMULATED" in ran.stderr


def test_without_the_device_there_is_no_gpu(reader: Reader) -> None:
    ran = reader.run()
    assert ran.returncode == 1
    assert "Result = FAIL" in ran.stdout


def test_the_container_is_given_what_the_spec_names(reader: Reader) -> None:
    made = reader.runtime_spec(cdi.device("all"))
    edits = reader.spec["devices"][1]["containerEdits"]
    nodes = [node["path"] for node in edits["deviceNodes"]]
    assert {f"/dev/{name}" for name in reader.fixture.cuda_nodes} <= set(nodes)
    assert [device["path"] for device in made["linux"]["devices"]] == nodes
    # As the board's null devices are, not as a guess.
    assert {(device["type"], device["major"], device["minor"]) for device in made["linux"]["devices"]} == {
        ("c", 1, 3)
    }

    mounts = {mount["destination"]: mount for mount in made["mounts"]}
    for wanted in reader.spec["containerEdits"]["mounts"]:
        assert mounts[wanted["containerPath"]]["source"] == wanted["hostPath"]
        assert "ro" in mounts[wanted["containerPath"]]["options"]
    assert f"{reader.fixture.library_dir}/libcuda.so.1.1" in mounts

    hooks = [hook["args"] for hook in made["hooks"]["createContainer"]]
    assert hooks == [hook["args"] for hook in reader.spec["containerEdits"]["hooks"]]


def test_the_hooks_are_called_with_links_and_folders(reader: Reader) -> None:
    reader.sh("rm -f /hooks")
    assert reader.run(f"--device={cdi.device('0')}").returncode == 0
    links, folders = reader.sh("cat /hooks").splitlines()
    assert links.startswith("hook create-symlinks --link libcuda.so.1.1::")
    assert folders == f"hook update-ldcache --folder {reader.fixture.library_dir}"
