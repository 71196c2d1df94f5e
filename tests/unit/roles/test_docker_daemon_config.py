# SPDX-License-Identifier: Apache-2.0
"""The merge of daemon.json keeps what its owner wrote and knows what needs a restart."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.planted import PLANTED, leaked
from tests.unit.roles.loading import load
from tests.unit.roles.playing import answer, run_module

module = load("nvidia_docker/library/docker_daemon_config.py")

PATH = "/usr/bin/nvidia-container-runtime"
WANTED: dict[str, Any] = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": PATH, "runtimeArgs": []}},
}


LOGS: dict[str, Any] = {"log-driver": "json-file", "log-opts": {"max-size": "10m"}}


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ({}, {**LOGS, **WANTED}),
        ({"log-driver": "journald"}, WANTED),
        ({"log-opts": {"max-size": "1g"}}, WANTED),
        ({"debug": True}, {**LOGS, **WANTED}),
    ],
)
def test_defaults_are_for_a_file_that_says_nothing_of_them(
    before: dict[str, Any], written: dict[str, Any]
) -> None:
    assert module.with_defaults(WANTED, LOGS, before) == written


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": PATH, "runtimeArgs": []},
        {"path": PATH, "args": []},
        {"path": PATH},
        {"path": "nvidia-container-runtime", "args": []},
        {"path": "nvidia-container-runtime", "runtimeArgs": []},
        {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": PATH}},
    ],
)
def test_the_same_runtime_in_other_words_is_left_alone(runtime: dict[str, Any]) -> None:
    before = {"default-runtime": "nvidia", "runtimes": {"nvidia": runtime}}
    assert module.merge_config(before, WANTED) == before


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": "/opt/nvidia-container-runtime"},
        {"path": PATH, "args": ["--debug"]},
        {"path": "/usr/bin/runc"},
        {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/runc"}},
        "odd",
    ],
)
def test_another_runtime_of_that_name_is_replaced(runtime: Any) -> None:
    after = module.merge_config({"runtimes": {"nvidia": runtime}}, WANTED)
    assert after["runtimes"]["nvidia"] == {"path": PATH, "runtimeArgs": []}


@pytest.mark.parametrize("before", [{}, {"path": PATH, "args": []}, {"runtimeType": "io.containerd.runc.v1"}])
def test_runtime_that_the_inventory_names_by_its_shim_has_no_path_beside_it(before: dict[str, Any]) -> None:
    shim = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": PATH}}
    wanted = {"runtimes": {"nvidia": {**WANTED["runtimes"]["nvidia"], **shim}}}  # merged with the role's own
    assert module.merge_config({"runtimes": {"nvidia": before}}, wanted) == {"runtimes": {"nvidia": shim}}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"debug": True}, {"debug": True}, "none"),
        ({}, WANTED, "reload"),
        ({"live-restore": False}, {"live-restore": True}, "reload"),
        ({}, {"data-root": "/mnt"}, "restart"),
        ({"debug": True, "exec-opts": ["a"]}, {"debug": False}, "restart"),
        (WANTED, {}, "restart"),
        ({"features": {"buildkit": True}}, {"features": {"buildkit": False}}, "reload"),
        ({}, {"features": {"containerd-snapshotter": False}}, "restart"),
        ({"debug": True, **WANTED}, {"debug": True}, "restart"),
        ({"runtimes": {"kata": {}, **WANTED["runtimes"]}}, {"runtimes": {"kata": {}}}, "reload"),
    ],
)
def test_activation_is_a_reload_when_every_changed_key_is_reloadable_and_still_there(
    before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    assert module.activation(before, after) == expected


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_file_is_an_empty_configuration(text: str) -> None:
    assert module.parse(text, "daemon.json") == {}


@pytest.mark.parametrize(
    ("text", "words"), [('{\n"a": 1\n"b": 2}', "line 3 column 1"), ("[]", "JSON object")]
)
def test_broken_file_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(module.ConfigError, match=words):
        module.parse(text, "/etc/docker/daemon.json")


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"debug": True},
        {"runtimes": {}},
        {"runtimes": {"kata": {"path": "/usr/bin/kata"}}, "default-runtime": "kata"},
        {"runtimes": {"nvidia": {"path": "/opt/other"}}, "features": {"buildkit": True}},
        {
            "default-runtime": "nvidia",
            "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
        },
    ],
)
def test_removal_gives_back_what_stood_before(before: dict[str, Any]) -> None:
    assert module.unmerge(module.merge_config(before, WANTED), WANTED, before) == before


def test_removal_leaves_alone_what_was_changed_since() -> None:
    merged = module.merge_config({"debug": True}, WANTED)
    since = {**merged, "default-runtime": "runc", "debug": False, "mtu": 1400}
    assert module.unmerge(since, WANTED, {"debug": True}) == {
        "debug": False,
        "default-runtime": "runc",
        "mtu": 1400,
    }


class FakeModule:
    """As much of AnsibleModule as `validate` uses, with a dockerd that gives one answer."""

    def __init__(self, tmpdir: Path, code: int, said: str) -> None:
        self.tmpdir, self.answer = str(tmpdir), (code, "", said)
        self.checked = ""

    def get_bin_path(self, name: str, opt_dirs: list[str]) -> str:
        return f"{opt_dirs[0]}/{name}"

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        self.checked = Path(argv[-1]).read_text()
        return self.answer


@pytest.mark.parametrize(("code", "said"), [(0, "configuration OK"), (125, "unknown flag: --validate")])
def test_configuration_that_dockerd_takes_or_cannot_check_is_written(
    tmp_path: Path, code: int, said: str
) -> None:
    fake = FakeModule(tmp_path, code, said)
    module.validate(fake, '{"debug": true}\n')
    assert fake.checked == '{"debug": true}\n'
    assert list(tmp_path.iterdir()) == []


def test_configuration_that_dockerd_refuses_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(module.ConfigError, match="don't match any configuration option: mtuu"):
        module.validate(FakeModule(tmp_path, 1, "keys don't match any configuration option: mtuu"), "{}")


@pytest.mark.parametrize("fails", [False, True])
def test_password_of_a_proxy_is_in_no_diff_result_or_log(tmp_path: Path, fails: bool) -> None:
    path, proxy = tmp_path / "daemon.json", f"http://me:{PLANTED['proxy']}@proxy.example"
    path.write_text("{," if fails else json.dumps({"proxies": {"https-proxy": proxy}}))
    places = {name: str(tmp_path / name) for name in ("record", "marker")}
    wanted = {"debug": True, "default-runtime": "nvidia", "proxies": {"http-proxy": proxy}}
    asked = {"path": str(path), "config": wanted, "_ansible_diff": True, **places}
    ran = run_module("nvidia_docker", "docker_daemon_config", asked)
    assert leaked(ran.stdout + ran.stderr) == []
    result = json.loads(ran.stdout)
    assert result.get("failed", False) is fails
    assert result["invocation"]["module_args"]["config"]["default-runtime"] == "nvidia"
    if not fails:
        assert result["default_runtime"] == "nvidia"
        assert '"debug": true' in result["diff"]["after"]
        assert path.read_text().count(PLANTED["proxy"]) == 2


def test_ansible_hides_the_secrets_alone_also_where_its_own_code_fails() -> None:
    proxy = f"http://me:{PLANTED['proxy']}@proxy.example"
    options = {"splunk-token": PLANTED["proxy"], "splunk-url": "https://splunk.example"}
    config = {"default-runtime": "nvidia", "proxies": {"http-proxy": proxy}, "log-opts": options}
    assert module.secrets({"path": "/x", "config": config}) == {proxy, PLANTED["proxy"]}


@pytest.mark.parametrize(
    ("config", "needs", "held"),
    [({"icc": False}, "restart", True), ({"debug": True}, "reload", False), ({}, "none", False)],
)
def test_what_needs_a_restart_can_be_held_back(
    tmp_path: Path, config: dict[str, Any], needs: str, held: bool
) -> None:
    path, marker = tmp_path / "daemon.json", tmp_path / "due"
    path.write_text("{}\n")
    asked = {
        "path": str(path),
        "config": config,
        "marker": str(marker),
        "record": str(tmp_path / "record"),
    }

    def run(**changed: object) -> Any:
        return answer("nvidia_docker", "docker_daemon_config", asked | changed)

    result = run(hold=True)
    assert (result["activation"], result["held"]) == (needs, held)
    assert (result["changed"], json.loads(path.read_text()) == config) == (
        bool(config) and not held,
        not held,
    )
    assert not marker.exists()
    again = run(hold=False)
    assert (again["changed"], json.loads(path.read_text())) == (held, config)
    assert marker.exists() is held
    if held:
        assert Path(again["backup_file"]).read_text() == "{}\n"
