# SPDX-License-Identifier: Apache-2.0
"""What the K3s stand-in keeps on disk and how it starts the Kubernetes programs."""

from pathlib import Path

import pytest

from tests.lab.k3s_standin import config, files, node, server, tokens
from tests.lab.k3s_standin.certs import Pair
from tests.lab.k3s_standin.errors import StandinError
from tests.lab.k3s_standin.membership import Membership

MEMBER = Membership(
    server_ca=Path("server-ca.crt"),
    client_ca=Path("client-ca.crt"),
    client=Pair(Path("c.crt"), Path("c.key")),
    serving=Pair(Path("s.crt"), Path("s.key")),
    kubeconfig=Path("kubelet.kubeconfig"),
    proxy=Pair(Path("p.crt"), Path("p.key")),
    proxy_kubeconfig=Path("kubeproxy.kubeconfig"),
)


def configured(tmp_path: Path, *flags: str) -> config.Config:
    """Return a server's configuration with its data below tmp_path."""
    arguments = ["--docker", "--data-dir", str(tmp_path), "--node-name", "board", *flags]
    return config.load("server", arguments, {}, tmp_path / "none")


def test_token_files_are_k3s_and_private(tmp_path: Path) -> None:
    identity = server.establish(configured(tmp_path, "--token=secret", "--agent-token=nodes"), "10.0.0.1")
    home = tmp_path / "server"
    ca_hash = tokens.ca_hash(identity.server_ca.cert.read_bytes())
    assert (home / "token").read_text() == f"K10{ca_hash}::server:secret\n"
    assert (home / "agent-token").read_text() == f"K10{ca_hash}::node:nodes\n"
    assert (home / "node-token").readlink() == Path("token")
    assert home.stat().st_mode & 0o777 == 0o700
    for path in (home / "token", home / "agent-token", identity.signing_key, identity.server_ca.key):
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_a_server_without_a_token_makes_one_and_keeps_it(tmp_path: Path) -> None:
    first = server.establish(configured(tmp_path), "10.0.0.1")
    again = server.establish(configured(tmp_path), "10.0.0.1")
    assert first == again
    assert first.passwords["node"] == first.passwords["server"] != ""


def test_another_token_than_the_clusters_is_refused(tmp_path: Path) -> None:
    server.establish(configured(tmp_path, "--token=secret"), "10.0.0.1")
    server.establish(configured(tmp_path, "--token", (tmp_path / "server/token").read_text()), "10.0.0.1")
    with pytest.raises(StandinError, match=r"made with another token, which is in .*server/token"):
        server.establish(configured(tmp_path, "--token=other"), "10.0.0.1")


def test_user_arguments_replace_the_kubelets_flags(tmp_path: Path) -> None:
    asked = configured(
        tmp_path,
        "--kubelet-arg=image-gc-high-threshold=80",
        "--kubelet-arg=feature-gates=A=true",
        "--node-label=a=b",
        "--node-taint=k=v:NoSchedule",
        "--pause-image=pause:1",
    )
    flags = node.kubelet_flags(asked, MEMBER, "10.0.0.2", node.docker_flags(asked, "systemd"))
    assert len({flag.split("=")[0] for flag in flags}) == len(flags), "no flag twice"
    assert {
        "--hostname-override=board",
        "--node-ip=10.0.0.2",
        "--cgroup-driver=systemd",
        "--image-gc-high-threshold=80",
        "--feature-gates=A=true",
        "--node-labels=a=b",
        "--register-with-taints=k=v:NoSchedule",
        "--pod-infra-container-image=pause:1",
    } <= set(flags)


def test_the_api_server_checks_who_asks(tmp_path: Path) -> None:
    asked = configured(tmp_path, "--kube-apiserver-arg=v=2")
    identity = server.establish(asked, "10.0.0.1")
    flags = server.apiserver_flags(asked, identity, "10.0.0.1", {"etcd-servers": "https://127.0.0.1:2379"})
    assert {"--authorization-mode=Node,RBAC", "--anonymous-auth=false", "--v=2"} <= set(flags)
    assert not any("token-auth-file" in flag or "insecure" in flag for flag in flags)


def test_a_file_that_is_as_wanted_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    files.write(path, "content")
    before = path.stat().st_ino
    files.write(path, "content")
    assert path.stat().st_ino == before
    files.write(path, "content", 0o644)
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_without_docker_the_node_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StandinError, match="docker is not installed"):
        node.docker_cgroup_driver()


@pytest.mark.parametrize(
    "said",
    ['echo \'{"ServerErrors":["Cannot connect"]}\'', "echo Cannot connect >&2; exit 1"],
    ids=["in its answer", "as an error"],
)
def test_a_docker_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str) -> None:
    fake_docker(tmp_path, said)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StandinError, match=r"is docker.service running\? .*Cannot connect"):
        node.docker_cgroup_driver()


def test_the_cgroup_driver_is_dockers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_docker(tmp_path, 'echo \'{"CgroupDriver":"systemd"}\'')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node.docker_cgroup_driver() == "systemd"


def fake_docker(directory: Path, script: str) -> None:
    """Put a docker command into a directory."""
    docker = directory / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)


def test_airgap_images_are_ignored_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node.warn_about_images(tmp_path)
    assert not caplog.text
    (tmp_path / "agent" / "images").mkdir(parents=True)
    (tmp_path / "agent" / "images" / "k3s-airgap-images-amd64.tar.gz").touch()
    node.warn_about_images(tmp_path)
    assert "agent/images is ignored: k3s-airgap-images-amd64.tar.gz" in caplog.text
