# SPDX-License-Identifier: Apache-2.0
"""Facts about boards, from the same simulated trees that the plugin's detection is tested with."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests import boards
from tests.unit.roles.conftest import Load


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("jetson_facts/library/jetson_facts.py")


@pytest.mark.parametrize("board_id", sorted(boards.load()))
def test_every_board_is_recognised(module: ModuleType, tmp_path: Path, board_id: str) -> None:
    fixture = boards.load()[board_id]
    boards.build(fixture, tmp_path)
    identity = module.board_identity(str(tmp_path))
    expected = {key: fixture.data[key] for key in ("soc", "l4t", "jetpack")} | {
        "platform": "tegra",
        "model": fixture.data["dt_model"],
    }
    assert {key: identity[key] for key in expected} == expected
    # Never a wrong module: JetPack 5 trees may list several.
    assert identity["module"] in (None, fixture.data["p_number"])


def test_masked_firmware_leaves_the_l4t_release(module: ModuleType, tmp_path: Path) -> None:
    boards.build(boards.load()["orinnano-jp6"], tmp_path, state="masked")
    identity = module.board_identity(str(tmp_path))
    assert (identity["platform"], identity["l4t"]) == ("tegra", "36.4.3")


def test_a_pc_is_no_jetson(module: ModuleType, tmp_path: Path) -> None:
    assert module.board_identity(str(tmp_path))["platform"] == "none"


@pytest.mark.parametrize(
    ("l4t", "jetpack"),
    [
        ("36.4.3", "6.2"),
        ("36.5.2", "6.2.2"),
        ("39.2.1", "7.2"),
        ("32.7.9", "4.6.6"),
        ("99.1.0", None),
        (None, None),
    ],
)
def test_unknown_patch_counts_as_the_newest_known_of_its_branch(
    module: ModuleType, l4t: str | None, jetpack: str | None
) -> None:
    assert module.jetpack_release(l4t) == jetpack


@pytest.mark.parametrize(
    ("text", "error", "config"),
    [
        ("", None, {}),
        ('{"debug": true}', None, {"debug": True}),
        ('{\n "a": 1,\n}', "line 3 column 1", {}),
        ("[1]", "not a JSON object", {}),
    ],
)
def test_daemon_json_is_read_or_its_error_named(
    module: ModuleType,
    tmp_path: Path,
    text: str,
    error: str | None,
    config: dict[str, object],
) -> None:
    assert module.daemon_json(str(tmp_path)) == {"exists": False, "error": None, "config": {}}
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text(text)
    found = module.daemon_json(str(tmp_path))
    assert (found["exists"], found["config"]) == (True, config)
    assert found["error"] is None if error is None else error in found["error"]


SHOW = """\
Id=docker.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
ExecStart={ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd --default-runtime=x ; ignore_errors=no ; pid=7 }

Id=k3s.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
"""


def test_units_are_told_apart(module: ModuleType) -> None:
    units = module.parse_units(SHOW)
    assert module.unit_state(units["docker.service"]) == {
        "installed": True,
        "active": True,
        "enabled": True,
        "command": "/usr/sbin/dockerd --default-runtime=x",
    }
    assert module.unit_state(units["k3s.service"]) == {
        "installed": False,
        "active": False,
        "enabled": False,
        "command": None,
    }


class FakeCommands:
    """Commands that answer with given texts."""

    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs

    def path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.outputs else None

    def output(self, *argv: str) -> str:
        return self.outputs.get(" ".join(argv[:2]), self.outputs.get(argv[0], ""))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA Container Runtime version 1.19.0\ncommit: x\n", "1.19.0"),
        ("runc version 1.0.0-rc8\nspec: 1.0.1\n", None),
        ("", None),
    ],
)
def test_runtime_version_is_nvidias_own(module: ModuleType, text: str, version: str | None) -> None:
    facts = module.nvidia_runtime_facts(FakeCommands({"nvidia-container-runtime": text}))
    assert facts == {"path": "/usr/bin/nvidia-container-runtime", "version": version}


def test_docker_facts_of_a_running_engine(module: ModuleType, tmp_path: Path) -> None:
    commands = FakeCommands(
        {
            "dockerd": "",
            "docker info": json.dumps(
                {
                    "ServerVersion": "20.10.24",
                    "DefaultRuntime": "runc",
                    "Runtimes": {"runc": {}, "nvidia": {}},
                }
            ),
            "docker image": "pause:3.2 sha256:aa\nregistry:5000/x:1 sha256:bb\n",
        }
    )
    facts = module.docker_facts(commands, str(tmp_path), module.parse_units(SHOW)["docker.service"])
    assert facts["running"] is True
    assert facts["runtimes"] == ["nvidia", "runc"]
    assert facts["images"] == {"pause:3.2": "sha256:aa", "registry:5000/x:1": "sha256:bb"}
    assert facts["conflicting_flags"] == ["--default-runtime"]


def test_docker_facts_of_a_stopped_engine(module: ModuleType, tmp_path: Path) -> None:
    facts = module.docker_facts(FakeCommands({"dockerd": ""}), str(tmp_path), {})
    assert (facts["installed"], facts["running"], facts["default_runtime"]) == (True, False, None)


def test_k3s_version_is_read(module: ModuleType) -> None:
    commands = FakeCommands({"k3s": "k3s version v1.20.2+k3s.standin (abc)\ngo version go1.19\n"})
    assert module.k3s_facts(commands, {})["version"] == "v1.20.2+k3s.standin"
