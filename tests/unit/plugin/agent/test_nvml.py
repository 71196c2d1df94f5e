# SPDX-License-Identifier: Apache-2.0
"""NVML's list of processes, through its C interface; the library is a stand-in that is compiled here."""

import subprocess
from pathlib import Path

import pytest
from tegra_device_plugin.agent.memory import HOST_LIBRARIES, MemoryUse, Nvml, NvmlError, UnknownUseError

from tests import boards

MIB = 2**20


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_standin.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", target, source], check=True)
    return target


@pytest.fixture
def thor(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    boards.build(boards.load()["thor5000-jp70"], root)
    return root


def test_processes_with_the_larger_of_both_figures(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_PROCESSES", "3")
    assert Nvml(["/no/such/library.so", str(library)]).by_process() == {100: 2 * MIB, 102: MIB}


def test_more_processes_than_expected(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_PROCESSES", "200")
    assert len(Nvml([str(library)]).by_process()) == 199


def test_an_nvml_error_is_reported(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_FAILS", "1")
    with pytest.raises(NvmlError, match="nvmlInit_v2: NVML error 9"):
        Nvml([str(library)])


def test_another_library_is_reported_with_its_missing_function() -> None:
    with pytest.raises(NvmlError, match="has no nvmlInit_v2"):
        Nvml(["libc.so.6"])


def test_a_thor_is_read_by_the_hosts_library(
    thor: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_PROCESSES", "1")
    on_host = thor / HOST_LIBRARIES[0].lstrip("/")
    on_host.parent.mkdir(parents=True, exist_ok=True)
    on_host.unlink(missing_ok=True)
    on_host.symlink_to(library)
    assert MemoryUse(thor).by_process() == {100: 2 * MIB}


def test_a_handle_that_has_failed_is_renewed(
    thor: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's handle is invalid for good, as after the driver was reloaded."""
    monkeypatch.setattr("tegra_device_plugin.agent.memory.NVML", str(library))
    memory = MemoryUse(thor)
    assert memory.by_process() == {100: 2 * MIB}
    assert memory._nvml is not None
    memory._nvml._device.value = 1
    with pytest.raises(UnknownUseError, match="NVML error 2"):
        memory.by_process()
    assert memory.by_process() == {100: 2 * MIB}


def test_nvml_is_not_believed_in_another_pid_namespace(thor: Path) -> None:
    """The host's /proc has another number for this process than the process itself."""
    (thor / "proc").mkdir(exist_ok=True)
    (thor / "proc/self").symlink_to("999999999")
    with pytest.raises(UnknownUseError, match="set hostPID in the agent's pod"):
        MemoryUse(thor).by_process()


def test_a_thor_without_nvml_cannot_tell(thor: Path) -> None:
    with pytest.raises(UnknownUseError, match=r"only NVML lists.*no libnvidia-ml\.so\.1"):
        MemoryUse(thor).by_process()
