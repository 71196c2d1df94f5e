# SPDX-License-Identifier: Apache-2.0
"""The packed executable, with shell scripts in place of the Kubernetes programs."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.lab import kubernetes
from tests.lab.process import LabError

UNPACK = "from k3s_standin import payload; print(payload.unpacked(pathlib.Path(sys.argv[1])))"
FACTS = {
    "kubernetes": "v1.20.2",
    "datastore": "etcd 3.4",
    "programs": ["kubelet", "kubectl"],
    "files": dict.fromkeys(["hyperkube", "etcd"], "sha256"),
}
VERSION = "v1.20.2+k3s.standin"
PARSE = "from k3s_standin import config; print(config.parse_yaml(pathlib.Path(sys.argv[1])))"


@pytest.fixture(scope="module")
def k3s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an executable whose programs print how they were called."""
    payload = tmp_path_factory.mktemp("payload")
    for name in ("hyperkube", "etcd"):
        (payload / name).write_text('#!/bin/sh\necho "$0" "$@" "KUBECONFIG=$KUBECONFIG"\n')
    (payload / "build.json").write_text(json.dumps(FACTS))
    out = tmp_path_factory.mktemp("packed") / "out"
    kubernetes.pack(out, payload, kubernetes.zip_sources(payload, "docker", "here"), VERSION)
    return out / "k3s"


def run(k3s: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the executable under this Python, without the project's packages in reach."""
    command = [sys.executable, "-I", "-S", str(k3s), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def inside(k3s: Path, program: str, argument: Path) -> str:
    """Run a Python program that sees nothing but the executable's modules, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys, pathlib; {program}", str(argument)],
        env={"PYTHONPATH": str(k3s)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def unpack(k3s: Path, data_dir: Path) -> Path:
    """Have the executable unpack itself, and return where to."""
    return Path(inside(k3s, UNPACK, data_dir))


def test_the_version_has_k3s_form_and_says_that_it_is_none(k3s: Path) -> None:
    done = run(k3s, "--version")
    assert done.stdout.startswith("k3s version v1.20.2+k3s.standin (stand-in for tests, not K3s: ")


def test_another_version_shares_the_programs(k3s: Path, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.mkdir()
    with zipfile.ZipFile(k3s) as archive:
        for name in ("hyperkube", "etcd", "build.json"):
            (payload / name).write_bytes(archive.read(f"payload/{name}"))
    version = kubernetes.named_version(payload, suffix="2", minors=1)
    kubernetes.pack(tmp_path / "out", payload, kubernetes.zip_sources(payload, "docker", "here"), version)
    other = tmp_path / "out" / "k3s"
    assert run(other, "--version").stdout.startswith("k3s version v1.21.2+k3s.standin2 (")
    assert unpack(other, tmp_path / "data") == unpack(k3s, tmp_path / "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="`k3s server` needs root before it looks at its configuration")
def test_a_refusal_is_one_line_and_a_status(k3s: Path) -> None:
    done = run(k3s, "server", "--frobnicate")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "flag provided but not defined" in done.stderr


@pytest.mark.parametrize(("command", "message"), [("ctr", "use docker"), ("etcd-snapshot", "no command")])
def test_commands_of_k3s_that_it_lacks_are_refused(k3s: Path, command: str, message: str) -> None:
    done = run(k3s, command)
    assert done.returncode == 1
    assert message in done.stderr


def test_it_brings_its_own_yaml(k3s: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("docker: true")
    assert inside(k3s, PARSE, tmp_path / "c.yaml") == "{'docker': True}"


def test_it_unpacks_once_and_clears_what_a_kill_left(k3s: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "data" / "dead.partial"
    leftover.mkdir(parents=True)
    programs = unpack(k3s, tmp_path)
    assert not leftover.exists()
    assert {path.name for path in programs.iterdir()} == {"hyperkube", "etcd", "kubelet", "kubectl"}
    done = subprocess.run([programs / "kubectl", "get"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{programs / 'kubectl'} get")
    before = (programs / "etcd").stat().st_ino
    assert unpack(k3s, tmp_path) == programs
    assert (programs / "etcd").stat().st_ino == before


def test_the_same_input_makes_the_same_file(k3s: Path, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    programs = unpack(k3s, tmp_path)
    payload.mkdir()
    for name in ("hyperkube", "etcd"):
        (payload / name).write_bytes((programs / name).read_bytes())
    (payload / "build.json").write_text(json.dumps(FACTS))
    kubernetes.pack(tmp_path / "again", payload, kubernetes.zip_sources(payload, "docker", "here"), VERSION)
    assert (tmp_path / "again" / "k3s").read_bytes() == k3s.read_bytes()


def test_a_real_k3s_is_used_when_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "k3s"
    monkeypatch.setenv("LAB_K3S", str(own))
    with pytest.raises(LabError, match=r"LAB_K3S=.* is neither an executable file nor"):
        kubernetes.k3s_standin()
    own.touch(mode=0o755)
    assert kubernetes.k3s_standin() == own
