# SPDX-License-Identifier: Apache-2.0
"""Pure parts of the modules that install K3s and talk to its server."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import ROLES, load

token = load("k3s/library/k3s_join_token.py")
node = load("k3s/library/k3s_node.py")
kubectl = load("k3s/module_utils/k3s_kubectl.py")
manifest = load("gpu_device_plugin/library/k3s_manifest.py")

HASH = "0123456789abcdef" * 4
EXPIRING = "q4bjus.7k1x6b1fz0d72prp"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (f"K10{HASH}::server:pass:word", (HASH, "node:pass:word")),
        (f"K10{HASH}::node:x", (HASH, "node:x")),
        ("password", (None, "node:password")),
        (f"K10{HASH}::{EXPIRING}", (HASH, EXPIRING)),
        (EXPIRING, (None, EXPIRING)),
        # A password that looks like an expiring token: the user before it says what it is.
        (f"K10{HASH}::node:{EXPIRING}", (HASH, f"node:{EXPIRING}")),
    ],
)
def test_token_is_parsed(text: str, parsed: tuple[str | None, str]) -> None:
    assert token.parse_token(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "K10short::server:x", f"K10{HASH}", f"K10{HASH}::server:", f"K10{HASH}::q4bjus.short", "two words"],
)
def test_malformed_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(token.TokenError) as caught:
        token.parse_token(text)
    assert caught.value.reason == "malformed"
    assert not text or text not in str(caught.value)


def test_token_is_never_sent_without_tls() -> None:
    with pytest.raises(token.TokenError, match="https"):
        token.verify("http://127.0.0.1:6443", "a CA", "password", 1)


def test_json_stream_is_cut_into_objects_wherever_the_pieces_end() -> None:
    text = '{\n "a": 1\n}\n{"b": "}{"}\n'
    for cut in range(len(text)):
        stream = kubectl.JsonStream()
        assert [*stream.feed(text[:cut]), *stream.feed(text[cut:])] == [{"a": 1}, {"b": "}{"}]


REFUSED = "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"


def scripted(patch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Have a script in the place of K3s, which counts its calls, and no pause between them."""
    program = directory / "k3s"
    program.write_text(f'#!/bin/sh\necho call >> "$0.calls"\n{script}\n')
    program.chmod(0o755)
    patch.setattr(kubectl, "K3S", str(program))
    patch.setattr(kubectl.time, "sleep", lambda _: None)


def test_api_server_that_restarts_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f'[ "$(wc -l < "$0.calls")" -gt 2 ] && exec cat\necho "{REFUSED}" >&2\nexit 1'
    scripted(monkeypatch, tmp_path, script)
    assert kubectl.run("apply", "--filename=-", stdin="manifest") == "manifest"


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (("node", "node"), "node --field-selector=metadata.name=node"),
        (("--namespace=n", "pod", "p"), "--namespace=n pod --field-selector=metadata.name=p"),
        (("daemonset", "d", "--namespace=n"), "daemonset --field-selector=metadata.name=d --namespace=n"),
        (("pods", "--selector=a=b"), "pods --selector=a=b"),
    ],
)
def test_an_object_is_watched_as_a_list_from_which_no_event_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: tuple[str, ...], asked: str
) -> None:
    script = """echo "$*" > "$0.asked"; echo '{"n": 1}'; echo '{"n": 2}'; exec sleep 60"""
    scripted(monkeypatch, tmp_path, script)
    assert kubectl.wait_until(lambda item: item["n"] == 2, "two", 30, *argv) == {"n": 2}
    assert (tmp_path / "k3s.asked").read_text() == f"kubectl get --watch --output=json {asked}\n"


def test_server_says_which_apis_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, tmp_path, "echo v1; echo resource.k8s.io/v1beta1")
    assert [kubectl.knows(api) for api in ("v1", "resource.k8s.io/v1beta1", kubectl.DRA)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, REFUSED), (60, "error dialing backend: connection refused"), (60, "Forbidden")],
)
def test_what_another_call_would_not_mend_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: int, said: str
) -> None:
    scripted(monkeypatch, tmp_path, f'echo "{said}" >&2\nexit 1')
    monkeypatch.setattr(kubectl, "RESTART_SECONDS", seconds)
    with pytest.raises(kubectl.KubectlError, match=f"kubectl get nodes: {re.escape(said)}"):
        kubectl.run("get", "nodes")
    assert (tmp_path / "k3s.calls").read_text().count("call") == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "has not registered"),
        ({"conditions": [{"type": "Ready", "status": "False", "message": "no network"}]}, "no network"),
        ({}, "kubelet has not reported"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "offers no nvidia.com/gpu"),
    ],
)
def test_complaint_says_what_is_missing(status: dict[str, Any] | None, words: str) -> None:
    assert words in node.complaint(None if status is None else {"status": status}, "nvidia.com/gpu")


def test_objects_that_must_not_be_there_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*arguments: str) -> str:
        asked.append(arguments)
        return "daemonset.apps/old\n"

    monkeypatch.setattr(manifest, "run", run)
    assert manifest.leftovers([]) == []
    assert manifest.leftovers(["daemonset.apps/old"]) == ["daemonset.apps/old"]
    (arguments,) = asked
    assert arguments[0] == "get" and "--namespace=kube-system" in arguments
    assert {"--ignore-not-found", "daemonset.apps/old"} < set(arguments)


def test_unchanged_objects_are_no_change() -> None:
    assert manifest.changed_objects("daemonset.apps/a unchanged\n") == []
    assert manifest.changed_objects("daemonset.apps/a configured\nconfigmap/b unchanged\n") == [
        "daemonset.apps/a configured"
    ]


@pytest.mark.parametrize(
    "path",
    sorted(
        {*ROLES.glob("*/library/*.py"), *ROLES.glob("*/module_utils/*.py")}
        - {
            ROLES / "preflight/library/bundle_info.py",
            ROLES / "kubeconfig/library/kubeconfig.py",
            *ROLES.glob("gpu_report/*/*.py"),
        }
    ),
    ids=lambda path: str(path.relative_to(ROLES)),
)
def test_code_for_boards_is_python_3_6(path: Path) -> None:
    # Those run on the controller; all others on boards, the oldest have Python 3.6.
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
