# SPDX-License-Identifier: Apache-2.0
"""The K3s stand-in reads its configuration as K3s does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from tests.lab.k3s_standin import config
from tests.lab.k3s_standin.errors import StandinError

JOIN = ["--docker", "--server=https://10.0.0.1:6443", "--token=secret"]


def load(
    tmp_path: Path,
    *flags: str,
    command: Literal["server", "agent"] = "server",
    environment: Mapping[str, str] | None = None,
    **files: str,
) -> config.Config:
    """Load a configuration from flags and files: `main` is config.yaml, every other name a drop-in."""
    (tmp_path / "config.yaml.d").mkdir()
    for name, content in files.items():
        path = tmp_path / "config.yaml" if name == "main" else tmp_path / "config.yaml.d" / f"{name}.yaml"
        path.write_text(content)
    return config.load(command, flags, environment or {}, tmp_path / "config.yaml")


def test_drop_ins_replace_the_main_file_in_alphabetical_order(tmp_path: Path) -> None:
    got = load(
        tmp_path,
        main="docker: true\nnode-name: main\nnode-label: [a=1]",
        b="node-name: b\nnode-label: [c=3]",
        a="node-name: a",
    )
    assert got.node_name == "b"
    assert got.node_labels == {"c": "3"}


def test_a_key_with_plus_appends(tmp_path: Path) -> None:
    got = load(tmp_path, main="docker: true\nkubelet-arg: v=1", a="kubelet-arg+:\n  - max-pods=9")
    assert got.kubelet_args == ("v=1", "max-pods=9")


def test_flags_replace_what_the_files_say(tmp_path: Path) -> None:
    got = load(
        tmp_path, "--node-name", "flag", "--tls-san=x,y", "--docker", main="docker: false\nnode-name: f"
    )
    assert got.node_name == "flag"
    assert got.tls_sans == ("x", "y")


@pytest.mark.parametrize(
    ("flags", "labels"),
    [([], {"file": "1"}), (["--node-label", "flag=2"], {"flag": "2"})],
    ids=["no flag", "a flag"],
)
def test_a_list_of_the_command_line_replaces_the_files_list(
    tmp_path: Path, flags: list[str], labels: dict[str, str]
) -> None:
    assert load(tmp_path, *flags, main="docker: true\nnode-label: file=1").node_labels == labels


def test_the_environment_yields_to_files_and_flags(tmp_path: Path) -> None:
    environment = {"K3S_URL": "https://env:6443", "K3S_TOKEN": "env"}
    got = load(
        tmp_path, command="agent", environment=environment, main="docker: true\nserver: https://file:6443/"
    )
    assert (got.server, got.token) == ("https://file:6443", "env")


def test_a_token_file_of_a_nearer_place_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from the file\n")
    got = load(
        tmp_path,
        environment={"K3S_TOKEN": "env"},
        main=f"docker: true\ntoken-file: {tmp_path / 'token'}",
    )
    assert got.token == "from the file"


def test_an_option_of_the_other_command_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, *JOIN, command="agent", main="disable: [traefik]")
    assert "disable is not an option of k3s agent" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("docker: true\nnode-lable: a=b", r"config.yaml: unknown key 'node-lable'"),
        ("docker: [", r"cannot read the configuration file .*config.yaml"),
        ("- docker", r"config.yaml: expected `key: value` lines, found a list"),
        ("docker: true\nnode-label: {a: b}", r"config.yaml: node-label: expected text"),
        ("docker: true\nnode-name: [a, b]", r"node-name takes one value"),
        ("docker: true\nnode-label: a", r"node-label is written key=value, not 'a'"),
        ("docker: true\nkubelet-arg: [v]", r"kubelet-arg is written name=value, not 'v'"),
        ("docker: true\nwrite-kubeconfig-mode: rw", r"octal file mode as 0644, not 'rw'"),
        ("docker: true\ntoken-file: /nonexistent", r"cannot read the token file /nonexistent"),
        ("docker: true\nserver: https://10.0.0.1:6443", r"knows one server only; LAB_K3S"),
        ("docker: maybe", r"--docker is true or false"),
        ("node-name: a", r"drives docker only: put `docker: true`"),
        ("docker: false", r"drives docker only: put `docker: true`"),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(StandinError, match=message):
        load(tmp_path, main=content)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--docker"], "--server is required"),
        ([*JOIN, "--server=10.0.0.1"], "must be an https:// URL"),
        (JOIN[:2], "--token is required"),
        ([*JOIN, "--frobnicate"], "flag provided but not defined.*--frobnicate"),
        ([*JOIN, "--tls-san=a"], "flag provided but not defined.*--tls-san"),
        ([*JOIN, "positional"], "flag provided but not defined.*positional"),
        ([*JOIN, "--node-name"], "flag needs a value: --node-name"),
    ],
)
def test_an_agent_that_could_not_join_is_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(StandinError, match=message):
        load(tmp_path, *flags, command="agent")


def test_short_flags_stand_for_the_long_ones(tmp_path: Path) -> None:
    got = load(tmp_path, "--docker", "-s", "https://s:6443", "-t", "secret", "-d", "/data", command="agent")
    assert (got.server, got.token, got.data_dir) == ("https://s:6443", "secret", Path("/data"))


def test_the_kubeconfig_mode_is_read_as_octal(tmp_path: Path) -> None:
    assert load(tmp_path, main='docker: true\nwrite-kubeconfig-mode: "0644"').kubeconfig_mode == 0o644
