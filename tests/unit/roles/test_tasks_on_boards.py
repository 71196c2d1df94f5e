# SPDX-License-Identifier: Apache-2.0
"""Tasks of roles on scripted boards: what they ask of which board, and where they stop."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.planted import EXEC_START, leaked
from tests.unit.roles.places import COLLECTION, Data
from tests.unit.roles.scripted import AGENT, BEGIN, BOARDS, OTHER_AGENT, SERVER, Calls, play_scripted

GONE = {"installed": False, "active": False, "enabled": False, "command": None}
RUNS = {"installed": True, "active": True, "enabled": True}


def of_board(**facts: Any) -> Data:
    """The answer with other facts of a board."""
    return {"jetson_facts": {"ansible_facts": {"jetson": facts}}}


def role(name: str, entry: str = "main", **variables: Any) -> str:
    """A play that has the facts and uses an entry point of a role."""
    used = {
        "ansible.builtin.import_role": {"name": f"{COLLECTION}.{name}", "tasks_from": entry},
        "vars": variables,
    }
    return f"{BEGIN}    - {json.dumps(used)}\n"


# K3s


def test_ca_and_tokens_are_read_on_the_server(tmp_path: Path) -> None:
    _, calls = play_scripted(tmp_path, role("k3s", "cluster"))
    read = calls.of("file_texts")
    assert read.boards == [SERVER] * len(BOARDS)
    assert read[0].arguments["files"]["ca"] == "/var/lib/rancher/k3s/server/tls/server-ca.crt"


@pytest.mark.parametrize(
    ("confirmed", "wanted"), [("rotate-ca-alone", "alone"), ("rotate-ca-again", "again")]
)
def test_change_of_the_cas_is_the_confirmed_one(tmp_path: Path, confirmed: str, wanted: str) -> None:
    arguments = (role("k3s", "rotate_ca"), "--limit", SERVER)
    _, calls = play_scripted(tmp_path, *arguments, jetson_k3s_confirm=[confirmed])
    assert [call.arguments["wanted"] for call in calls.of("k3s_ca_rotation")] == [wanted] * 2


def test_two_changes_of_the_cas_are_refused(tmp_path: Path) -> None:
    confirmed = ["rotate-ca-again", "rotate-ca-alone"]
    run, calls = play_scripted(tmp_path, role("k3s", "check_ca"), fails=True, jetson_k3s_confirm=confirmed)
    assert "jetson_k3s_confirm has rotate-ca-again and rotate-ca-alone" in run.said
    assert "Nothing was changed on any board" in run.said
    assert not calls.of("k3s_ca_rotation")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (True, "The old CAs are still trusted: -e jetson_k3s_confirm=rotate-ca-alone ends that."),
        (False, "K3s trusts these CAs alone."),
    ],
)
def test_run_that_changes_no_ca_says_which_are_trusted(tmp_path: Path, replaced: bool, message: str) -> None:
    found = {"closed": False, "since": 1700000000, "trusts_replaced": replaced}
    text, answers = role("k3s", "close_ca_rotation"), {SERVER: {"k3s_ca_rotation": found}}
    run, _ = play_scripted(tmp_path, text, "--limit", SERVER, answers=answers)
    assert "The CAs are those of 2023-11-14" in run.said
    assert message in run.said


def test_each_server_has_the_clusters_token_of_agents_in_its_configuration(tmp_path: Path) -> None:
    """K3s would take the token of servers for agents, and a further server could not join."""
    tokens = {"token": f"K10{'c' * 64}::server:x", "agent-token": f"K10{'c' * 64}::node:of agents"}
    answers = {SERVER: {"file_texts": {"texts": tokens, "unread": {}}}}
    groups = {"server": [SERVER, AGENT], "agent": [OTHER_AGENT], "k3s_cluster": BOARDS}
    _, calls = play_scripted(tmp_path, role("k3s", "prepare"), groups=groups, answers=answers)
    written = {
        call.board: yaml.safe_load(file["content"])
        for call in calls.of("file_set")
        for file in call.arguments["files"]
        if file["path"].endswith("/50-jetson-k3s.yaml")
    }
    file = "/etc/rancher/k3s/jetson-k3s.agent-token"
    assert {board: config.get("agent-token-file") for board, config in written.items()} == {
        SERVER: file,
        AGENT: file,
        OTHER_AGENT: None,
    }


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("due", "active", "asked"),
    [
        (True, True, ("restarted", True)),
        (False, False, ("started", False)),
        (False, True, None),
    ],
)
def test_k3s_starts_again_and_systemd_is_reloaded_for_a_change_only(
    tmp_path: Path, due: bool, active: bool, asked: tuple[str, bool] | None
) -> None:
    state = RUNS | {"active": active, "enabled": active}
    answers = {AGENT: of_board(k3s={"agent": state})}
    text = role("k3s", "service", __k3s_configured={"restart_due": due, "postponed": False})
    _, calls = play_scripted(tmp_path, text, "--limit", AGENT, answers=answers)
    started = [call.arguments for call in calls.of("systemd_service")]
    found = [(one["state"], one["daemon_reload"]) for one in started]
    assert found == ([asked] if asked else [])


def test_flags_of_the_stock_script_are_not_shown(tmp_path: Path) -> None:
    command = "/usr/local/bin/k3s server --docker --datastore-endpoint (hidden)"
    answers = {
        SERVER: of_board(k3s={"server": {**RUNS, "command": command}})
        | {"command ExecStart": {"stdout": EXEC_START}}
    }
    text = role("k3s", "configure")
    run, calls = play_scripted(
        tmp_path, text, "-vvv", "--limit", SERVER, answers=answers, jetson_k3s_confirm=["migrate"]
    )
    assert len(calls.of("file_set")) == 2
    assert "planted-database" in str(calls.of("file_set")[0].arguments)
    assert leaked(run.stdout) == []


# Docker


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("runs", "staged", "postponed"),
    [("server", True, True), ("agent", True, True), ("", True, False), ("agent", False, False)],
)
def test_docker_of_a_running_node_restarts_in_its_batch(
    tmp_path: Path, runs: str, staged: bool, postponed: bool
) -> None:
    units = {name: RUNS if name == runs else GONE for name in ("server", "agent")}
    answers = {AGENT: of_board(k3s=units)}
    text = role("nvidia_docker", "main", __nvidia_docker_staged=staged)
    _, calls = play_scripted(tmp_path, text, "--limit", AGENT, answers=answers)
    asked = [*calls.of("docker_daemon_config"), *calls.of("docker_environment")]
    assert [call.arguments["postpone"] for call in asked] == [postponed] * 2


@pytest.mark.acceptance
@pytest.mark.parametrize(("held", "due"), [([], True), (["docker.io"], False)])
def test_packages_of_the_role_are_held(tmp_path: Path, held: list[str], due: bool) -> None:
    facts = {"packages": {"installed": ["docker.io"], "held": held, "ours": ["docker.io"], "unattended": []}}
    _, calls = play_scripted(
        tmp_path, role("nvidia_docker", "packages"), "--limit", AGENT, answers={AGENT: of_board(**facts)}
    )
    assert bool(calls.of("package_holds")) is due


def test_damaged_archive_of_packages_is_not_copied(tmp_path: Path) -> None:
    text = role("nvidia_docker", "debs", __nvidia_docker_packages=["docker.io"])
    info = {"path": "/nonexistent", "files": {"debs-jetpack6-amd64.tar": {"error": "cut off"}}}
    run, calls = play_scripted(tmp_path, text, "--limit", AGENT, fails=True, preflight_bundle_info=info)
    assert "debs-jetpack6-amd64.tar: cut off. Copy or make the bundle again" in run.said
    assert not calls.of("upload_directory", state="present")
    assert not calls.of("copy")


# The registry of the site, jtop


@pytest.mark.acceptance
def test_registry_is_on_its_board_alone_with_a_key_of_its_own(tmp_path: Path) -> None:
    _, calls = play_scripted(tmp_path, role("image_supply"), image_supply_host=AGENT)
    assert set(calls.of("user").boards) == {AGENT}
    assert set(calls.of("systemd_service").boards) == {AGENT}
    (key,) = (call for call in calls.of("file") if str(call.arguments["path"]).endswith(".key"))
    assert (key.arguments["mode"], key.arguments["owner"]) == ("0640", "root")
    assert set(calls.of("slurp").boards) == {AGENT}


IMAGE = {
    "name": "app:1",
    "source": "app.tar",
    "id": "sha256:id",
    "content": "content:app",
    "architecture": "amd64",
    "manifest": {"digest": "sha256:m", "size": 1},
    "config": {"digest": "sha256:c", "size": 2},
    "layers": [{"digest": "sha256:l", "size": 3, "diff_id": "sha256:d"}],
}
OF_USER: Data = {
    "preflight_bundle_info": {"path": "/bundle", "indexed": True, "files": {}, "images": [IMAGE]},
    "bundle_images": ["app.tar"],
    "k3s_container_runtime": "containerd",
}


@pytest.mark.acceptance
def test_board_with_containerd_gets_images_of_the_user_from_the_registry_alone(tmp_path: Path) -> None:
    lacks: dict[str, Data] = {"containerd_kept_images": {"missing": ["docker.io/library/app:1"]}}
    gets: dict[str, dict[str, Data]] = {AGENT: {**lacks, "supplied_images": {"supplied": True}}}
    gets[OTHER_AGENT] = lacks
    arguments = (role("user_images"), "--limit", f"{AGENT},{OTHER_AGENT}")
    run, calls = play_scripted(
        tmp_path, *arguments, answers=gets, fails=True, image_supply_host=AGENT, **OF_USER
    )
    for pull in calls.of("supplied_images"):
        assert pull.has(engine="containerd", images={"app:1": "sha256:m"}, contents={})
    assert len(calls.of("containerd_kept_images", AGENT)) == 2
    assert not calls.of("loaded_images")
    # No fallback: its image would cross the slow link for each board.
    assert f"{OTHER_AGENT}: {AGENT} did not supply the images of bundle_images: no answer" in run.said
    assert len(calls.of("containerd_kept_images", OTHER_AGENT)) == 1


@pytest.mark.acceptance
def test_registry_of_a_site_with_containerd_gets_images_of_the_user_alone(tmp_path: Path) -> None:
    given = (role("image_supply"), "--limit", AGENT)
    _, calls = play_scripted(tmp_path, *given, image_supply_host=AGENT, **OF_USER)
    assert calls.of("registry_images")
    assert all(call.has(images=["sha256:id"]) for call in calls.of("registry_images"))


FOREIGN = {**RUNS, "command": "/usr/bin/python3 -m jtop", "version": "4.3.9", "program": "owner"}


@pytest.mark.acceptance
def test_jtop_of_the_owner_stays(tmp_path: Path) -> None:
    for state in ("present", "absent"):
        text, answers = role("jtop"), {AGENT: of_board(jtop=FOREIGN)}
        _, calls = play_scripted(tmp_path, text, "--limit", AGENT, answers=answers, jetson_k3s_state=state)
        units = {call.arguments["name"] for call in calls.of("systemd_service") if "name" in call.arguments}
        assert units <= {"jtop-relay.socket"}
        written = {call.arguments["dest"] for call in calls.of("copy")}
        written |= {call.arguments["path"] for call in calls.of("file") if "path" in call.arguments}
        assert not {"/etc/systemd/system/jtop.service", "/usr/local/bin/jtop"} & written
        assert (state == "present") == ("/etc/systemd/system/jtop-relay.socket" in written and bool(units))


RESULT = {"name": f"{COLLECTION}.gpu_device_plugin", "tasks_from": "jtop_result"}
JTOP_THEN_RESULT = role("gpu_device_plugin") + f"    - ansible.builtin.import_role: {json.dumps(RESULT)}\n"


def test_jtop_by_one_setting_is_there_before_the_labels(tmp_path: Path) -> None:
    """Of three boards, one has the Python of JetPack 4, and goes without."""
    answers = {AGENT: of_board(python="3.6.9")}
    _, calls = play_scripted(tmp_path, JTOP_THEN_RESULT, answers=answers, gpu_device_plugin_jtop=True)
    relays = calls.of("systemd_service", name="jtop-relay.socket")
    assert sorted(set(relays.boards)) == [SERVER, OTHER_AGENT]
    for board in BOARDS:
        of_board_now = calls.of("container_command", board)
        (labels,) = (call for call in of_board_now if "labels" in call.arguments["argv"])
        mounted = any("/var/lib/jetson-k3s/jtop" in part for part in labels.arguments["argv"])
        assert mounted == (board != AGENT)
        if mounted:
            assert calls.index(relays.of("systemd_service", board)[0]) < calls.index(labels)


def test_a_board_gets_its_gpu_where_jtop_cannot_be_installed(tmp_path: Path) -> None:
    answers = {AGENT: {"systemd_service jtop-relay.socket": {"failed": True, "msg": "no socket."}}}
    run, calls = play_scripted(
        tmp_path, JTOP_THEN_RESULT, answers=answers, fails=True, gpu_device_plugin_jtop=True
    )
    assert sorted(call.arguments["name"] for call in calls.of("k3s_node")) == list(BOARDS)
    assert "jtop was not installed, and the board offers its GPU without it: no socket." in run.said
    assert run.said.count("failed=1") == 1  # in the recap: that board alone


def test_without_the_setting_no_board_gets_jtop(tmp_path: Path) -> None:
    _, calls = play_scripted(tmp_path, JTOP_THEN_RESULT)
    assert not calls.of("systemd_service", name="jtop-relay.socket")
    assert not any("/jtop" in json.dumps(call.arguments) for call in calls.of("container_command"))


# The device plugin and the verification


def deploy(directory: Path, answers: dict[str, Data], *, fails: bool = False) -> tuple[str, Calls]:
    run, calls = play_scripted(directory, role("gpu_device_plugin"), answers=answers, fails=fails)
    return run.said, calls


@pytest.mark.acceptance
def test_device_plugin_is_deployed_once_and_renewed_on_each_board(tmp_path: Path) -> None:
    # Exit status 1 of the plugin: it has found no GPU, and the wait for it says more.
    _, calls = deploy(tmp_path, {AGENT: {"container_command labels": {"rc": 1, "stdout": ""}}})
    assert calls.of("k3s_manifest").boards == [SERVER]
    waits = calls.of("k3s_node")
    assert sorted(call.arguments["name"] for call in waits) == list(BOARDS)
    assert {(call.board, call.arguments["renew"]) for call in waits} == {(SERVER, True)}
    assert all(call.arguments["offers"] == {"nvidia.com/gpu": 1} for call in waits)
    taint = ["jetson-k3s.github.io/throttled:PreferNoSchedule"]
    assert all(call.arguments["absent_taints"] == taint for call in waits)


def test_no_instance_stands_by_with_other_settings_while_the_pod_is_renewed(tmp_path: Path) -> None:
    """The kubelet may go on offering the resources of a plugin that has served for a moment."""
    same = hashlib.sha256(b"").hexdigest()
    answers = {
        board: {"jetson_facts": {"ansible_facts": {"jetson": {"docker": {"stand_by_settings": settings}}}}}
        for board, settings in {SERVER: same, AGENT: "0" * 64}.items()
    }
    _, calls = deploy(tmp_path, answers)
    removed = [
        (at, call.board)
        for at, call in enumerate(calls)
        if call.module == "stand_by_container" and call.arguments.get("state") == "absent"
    ]
    (deployed,) = (at for at, call in enumerate(calls) if call.module == "k3s_manifest")
    assert [board for at, board in removed if at < deployed] == [AGENT]
    assert len(removed) == 1


@pytest.mark.acceptance
def test_boards_with_other_settings_get_a_daemonset_of_their_own(tmp_path: Path) -> None:
    """And what the boards offer is waited for on each by its own settings."""
    units = {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}
    play = role("gpu_device_plugin").replace(
        "    - ansible.builtin.set_fact:\n",
        "    - ansible.builtin.add_host:\n"
        f"        name: {AGENT}\n"
        "        gpu_device_plugin_config_name: units\n"
        f"        gpu_device_plugin_config: {json.dumps(units)}\n"
        "    - ansible.builtin.set_fact:\n",
        1,
    )
    _, calls = play_scripted(tmp_path, play)
    (deployed,) = calls.of("k3s_manifest")
    objects = [*yaml.safe_load_all(deployed.arguments["manifest"])]
    daemonsets = {one["metadata"]["name"] for one in objects if one["kind"] == "DaemonSet"}
    assert daemonsets == {"tegra-device-plugin", "tegra-device-plugin-units"}
    label = "jetson-k3s.github.io/device-plugin"
    waits = {call.arguments["name"]: call.arguments for call in calls.of("k3s_node")}
    values = {name: given["labels"][label] for name, given in waits.items()}
    assert values == {SERVER: "true", AGENT: "units", OTHER_AGENT: "true"}
    memory, whole = "jetson-k3s.github.io/gpu-memory", "nvidia.com/gpu"
    offers = {name: [*given["offers"]] for name, given in waits.items()}
    assert offers == {SERVER: [whole], AGENT: [memory], OTHER_AGENT: [whole]}
    (removal,) = calls.of("gpu_configurations")
    assert removal.arguments["kept"] == ["tegra-device-plugin", "tegra-device-plugin-units"]
    assert [call.module for call in calls if call.module in ("gpu_configurations", "k3s_node")][-1] == (
        "gpu_configurations"
    )
    # The instance that stands by has the settings of its board.
    stands = {
        call.board: call.arguments["files"]
        for call in calls.of("stand_by_container")
        if "files" in call.arguments
    }
    configs = {
        board: [one["content"] for one in files if "config.yaml" in one["path"]]
        for board, files in stands.items()
    }
    assert {board: "units" in text for board, (text,) in configs.items()} == {
        SERVER: False, AGENT: True, OTHER_AGENT: False,
    }  # fmt: skip


@pytest.mark.acceptance
def test_settings_that_the_plugin_refuses_end_before_the_deployment(tmp_path: Path) -> None:
    _, calls = deploy(
        tmp_path, {board: {"container_command labels": {"rc": 2}} for board in BOARDS}, fails=True
    )
    assert not calls.of("k3s_manifest")


@pytest.mark.acceptance
def test_api_for_gpus_does_not_change_under_pods_that_use_the_other(tmp_path: Path) -> None:
    said, calls = deploy(tmp_path, {SERVER: {"gpu_api_users": {"users": ["default/train"]}}}, fails=True)
    assert "these pods use a GPU by the other API: default/train. Nothing was changed on this board." in said
    assert not calls.of("k3s_manifest")


@pytest.mark.acceptance
def test_board_that_fails_one_check_fails_the_verification(tmp_path: Path) -> None:
    now = "2026-01-02T03:04:05.000Z"
    check = {
        "id": "device-query", "title": "t", "status": "failed", "seconds": 1.0, "reason": "no device",
        "evidence": [], "events": [], "diagnosis": [], "fix": "", "url": "",
    }  # fmt: skip
    part = {"started": now, "ended": now, "checks": [check]}
    answers = {SERVER: {"gpu_checks access": {"part": part}}}
    run, calls = play_scripted(tmp_path, role("gpu_verify"), "--limit", AGENT, answers=answers, fails=True)
    assert f"{AGENT}: verification failed device-query: t no device" in run.said
    stages = [call.arguments["stage"] for call in calls.of("gpu_checks")]
    assert stages == ["node", "access", "sharing", "close"]


# Updates of the operating system


def test_plan_of_an_update_installs_nothing(tmp_path: Path) -> None:
    _, calls = play_scripted(tmp_path, role("os_update", "plan"), "--limit", AGENT)
    fetched, planned = calls.of("os_packages")
    assert fetched.arguments["fetch"] is True
    assert planned.changes is False


@pytest.mark.parametrize(
    ("given", "security", "also"),
    [
        pytest.param(None, True, [], marks=pytest.mark.acceptance),
        pytest.param("all", False, [], marks=pytest.mark.acceptance),
        (["security", "docker.io"], True, ["docker.io"]),
    ],
)
def test_updates_are_those_of_security_unless_others_are_named(
    tmp_path: Path, given: str | list[str] | None, security: bool, also: list[str]
) -> None:
    variables: Data = {"os_update_packages": given} if given else {}
    # In check mode Ansible does not start it as a job.
    _, calls = play_scripted(tmp_path, role("os_update"), "--limit", AGENT, "--check", **variables)
    (call,) = calls.of("os_packages")
    assert (call.arguments["security"], call.arguments["also"]) == (security, also)


# What explains a failure


def test_journal_that_cannot_be_read_does_not_hide_the_failure(tmp_path: Path) -> None:
    text = role("jetson_facts", "explain", __jetson_facts_unit="k3s", __jetson_facts_trouble="K3s has ended.")
    answers = {OTHER_AGENT: {"service_journal": {"failed": True, "msg": "no journal"}}}
    run, _ = play_scripted(tmp_path, text, "--limit", OTHER_AGENT, answers=answers, fails=True)
    assert f"{OTHER_AGENT}: K3s has ended." in run.said


# Boards that do not answer


START: Data = {"__k3s_configured": {"restart_due": True, "postponed": False}}
LONG_TASKS = {"k3s/service": "systemd_service", "os_update/main": "os_packages"}


@pytest.mark.parametrize("entry", LONG_TASKS)
def test_board_that_stops_answering_in_a_long_task_fails(tmp_path: Path, entry: str) -> None:
    run, calls = play_scripted(
        tmp_path,
        role(*entry.split("/"), **START),
        "--limit",
        AGENT,
        answers={AGENT: {LONG_TASKS[entry]: {"silent": True}}},
        fails=True,
        environment={"ANSIBLE_TASK_TIMEOUT": "5"},
        jetson_k3s_timeout=5,
    )
    assert calls[-1].module == LONG_TASKS[entry]
    assert "unreachable=0 failed=1" in run.said
