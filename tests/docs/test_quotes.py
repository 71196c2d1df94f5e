# SPDX-License-Identifier: Apache-2.0
"""Each message, line of output and file that a document quotes exists: the sources print it or make it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_status, gpu_status_credentials

from tests.docs import CHECKOUT, markdown, quotes
from tests.docs.markdown import Document
from tests.docs.quotes import Corpus

FOREIGN = yaml.safe_load(Path(__file__).with_name("foreign.yml").read_text())
RENDERED = "roles/gpu_status/README.md"
# What was true at an earlier release, and pages about the tests.
LEFT_OUT = re.compile(r"CHANGELOG\.md|tests/")


def flat(section: str) -> list[str]:
    return [one for some in FOREIGN[section].values() for one in some]


def documents() -> list[Document]:
    read = (markdown.read(path) for path in markdown.paths())
    return [document for document in read if not LEFT_OUT.match(document.name)]


MESSAGES = {
    document.name: list(dict.fromkeys(quotes.messages(document)))
    for document in documents()
    if document.name != RENDERED
}
FILES = {document.name: list(dict.fromkeys(quotes.files(document))) for document in documents()}
EXCUSED = {*flat("programs"), *flat("tests")}


def test_every_quoted_message_is_printed() -> None:
    assert sum(map(len, MESSAGES.values())) > 150
    lost = {
        name: found
        for name, some in MESSAGES.items()
        if (found := [one for one in some if one not in EXCUSED and not quotes.sources().has(one)])
    }
    assert lost == {}, "no source prints them: correct the page; another program's stand in foreign.yml"


def test_every_quoted_file_exists_or_is_made() -> None:
    assert sum(map(len, FILES.values())) > 300
    excused = {*flat("files"), *flat("made")}
    lost = {
        document.name: found
        for document in documents()
        if (
            found := [
                one
                for one in FILES[document.name]
                if one not in excused and not quotes.is_in_checkout(one, document) and not quotes.is_made(one)
            ]
        )
    }
    assert lost == {}


def test_exceptions_are_quoted_and_no_source_has_them() -> None:
    quoted = {one for some in (*MESSAGES.values(), *FILES.values()) for one in some}
    every = [one for section in FOREIGN for one in flat(section)]
    assert [one for one in every if one not in quoted] == []
    assert len(every) == len(set(every))
    assert [one for one in flat("programs") if quotes.sources().has(one)] == []
    assert [one for one in flat("files") if quotes.is_made(one)] == []


@pytest.mark.parametrize("test", FOREIGN["tests"])
def test_message_that_is_put_together_is_expected_by_a_test(test: str) -> None:
    expected = Corpus(list(quotes.texts_of(CHECKOUT / test)))
    assert [one for one in FOREIGN["tests"][test] if not expected.says(one)] == []


@pytest.mark.parametrize("source", FOREIGN["made"])
def test_file_that_is_put_together_is_of_its_source(source: str) -> None:
    text = "".join((CHECKOUT / name).read_text() for name in source.split(" and "))
    for one in FOREIGN["made"][source]:
        assert [part for part in quotes.chunks(one) if part not in text] == []


KINDS = {
    "text.py": 'fail("the board was lost in the fog")',
    "joined.py": 'fail("the board was "\n     "lost in the fog")',
    "f_string.py": 'fail(f"{board} was lost in the {name} after {n} s")',
    "format.py": 'fail("{} was lost in the {name!r} after {:.1f} s".format(board, n))',
    "percent.py": 'log("%s was lost in the %-5s after %d s", board, n)',
    "task.yml": "- fail:\n    msg: >-\n      {{ board }} was lost in\n      the {{ name }} after {{ n }} s",
    "template.j2": "{% if x %}{{ board }} was lost in the {{ name }} after {{ n }} s{% endif %}",
    "script.sh": 'echo "$board was lost in the ${name:-fog} after $n s"',
    "limit.c": 'say("%s was lost "\n    "in the %s after %lu s");',
}


@pytest.mark.parametrize("name", KINDS)
def test_changed_message_of_each_kind_is_found(name: str, tmp_path: Path) -> None:
    def corpus(text: str) -> Corpus:
        (tmp_path / name).write_text(text)
        return Corpus(list(quotes.texts_of(tmp_path / name)))

    said = ["was lost in the"]
    if "after" in KINDS[name]:
        said += [
            "jetson-1 was lost in the ... after",
            "jetson-1 was lost in the x1 after 5 s",
            "... after 5 s",
        ]
    assert [one for one in said if not corpus(KINDS[name]).has(one)] == []
    changed = KINDS[name].replace("lost", "found").replace("after", "within")
    assert [one for one in said if corpus(changed).has(one)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""The board was lost in the fog."""'),
        ("a.py", "# The board was lost in the fog.\n"),
        ("a.yml", "# The board was lost in the fog.\n- a: 1\n"),
        ("a.sh", "# The board was lost in the fog.\n"),
        ("a.c", "/* The board was lost in the fog. */"),
    ],
)
def test_comment_prints_nothing(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert not Corpus(list(quotes.texts_of(tmp_path / name))).has("was lost in the fog")


def changes(message: str) -> list[str]:
    """The message with each of its plain words changed in turn."""
    own = set(quotes.plain(quotes.words(message)))
    found = re.split(r"(\s+)", message)
    places = [place for place, word in enumerate(found) if own & set(quotes.words(word))]
    return ["".join([*found[:place], "xyzzy", *found[place + 1 :]]) for place in places]


def test_changed_quote_of_each_page_would_be_found() -> None:
    """Of a message, most words are the source's own: a value can stand for few of them."""
    own = [one for some in MESSAGES.values() for one in some if one not in EXCUSED and " " in one]
    weak = []
    for message in own:
        changed = changes(message)
        accepted = [one for one in changed if quotes.sources().has(one)]
        if changed and 2 * len(accepted) >= len(changed):
            weak.append(message)
    assert weak == []


@pytest.mark.parametrize(
    "path",
    ["/etc/rancher/k3s/config.yml.d", "docs/trouble.md", "roles/k3s/tasks/none.yml", "/var/lib/k4s"],
)
def test_file_that_nobody_makes_is_found(path: str) -> None:
    assert not quotes.is_in_checkout(path, markdown.read(CHECKOUT / "README.md"))
    assert not quotes.is_made(path)


def certificate(name: str, ends: str, days: int, kind: str) -> dict[str, Any]:
    return {"name": name, "path": name, "kind": kind, "ends": ends, "days": days}


def test_status_of_the_page_is_what_status_yml_prints() -> None:
    gpu = {"name": "nvidia.com/gpu", "capacity": 1, "allocatable": 1, "sharing": None}
    figures = ("percent", "memory_limit_mib", "memory_used_mib", "memory_resident_mib")
    holder: dict[str, Any] = {"namespace": "team-a", "pod": "train-0", "container": "main"}
    holder |= {"phase": "Running"}
    holder |= {"held": [{"count": 1, "resource": "nvidia.com/gpu"}]} | dict.fromkeys(figures)
    nothing: dict[str, Any] = {
        "devices": [],
        "differences": [],
        "other_plugins": [],
        "two_plugins": [],
        "device_plugin": False,
        "configuration": None,
    }
    orin: dict[str, Any] = {
        "name": "jetson-1",
        "module": "Jetson-AGX-Orin-devkit",
        "l4t": "36.4.3",
        "jetpack": "6.2",
    }
    xavier: dict[str, Any] = {
        "name": "jetson-2",
        "module": "Jetson-Xavier-NX",
        "l4t": "35.3.1",
        "jetpack": "5.1.1",
    }
    orin |= nothing | {"ready": True, "resources": [gpu | {"used": 1}], "holders": [holder], "problem": None}
    xavier |= nothing | {"ready": False, "resources": [gpu | {"used": 0}], "holders": None}
    xavier |= {"problem": "the node is not Ready: Kubelet stopped posting node status."}
    nodes = [orin, xavier]
    soon, later = "2027-01-03T08:00:00Z", "2036-11-20T08:00:00Z"
    leaves = ("client-admin", "client-kubelet", "serving-kube-apiserver", "serving-kubelet")
    certificates = [certificate(one, soon, 42, "leaf") for one in leaves]
    certificates += [certificate(one, later, 3649, "ca") for one in ("client-ca", "server-ca")]
    reboot = {"required": True, "kernel": None, "packages": ["libc6", "linux-base"]}
    first: dict[str, Any] = {
        "name": "jetson-1",
        "problem": None,
        "reboot": reboot,
        "certificates": certificates,
    }
    second: dict[str, Any] = {"name": "jetson-2", "reboot": None, "certificates": []}
    second |= {"problem": gpu_status_credentials.NOT_KNOWN}
    boards = [one | {"stand_by": None, "docker": None} for one in (first, second)]
    token = {"name": "q4bjus", "description": "new boards", "ends": "2026-11-23T09:00:00Z", "days": 1}
    found = {"boards": boards, "tokens": [token], "agents_join_with": "agents", "nodes": nodes}
    (block,) = [one for one in markdown.read(CHECKOUT / RENDERED).blocks if one.language == "console"]
    assert block.text.partition("\n")[2].rstrip("\n").split("\n\n") == [
        gpu_status.table({"nodes": nodes, "unseen": [], "not_advertised": []}),
        gpu_status_credentials.table(found),
        gpu_status_credentials.reboots_table(found),
    ]
