# SPDX-License-Identifier: Apache-2.0
"""Bundles: their index, the pinned K3s of a download, and the plugin's image where there is no bundle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_content
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import BundleError, parse_sums
from ansible_collections.jetson_k3s.cluster.plugins.modules import bundle_index as index

from tests.lab import archive
from tests.unit.roles.places import ROLES, Data
from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.preflight_facts import WITHOUT_BUNDLE


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "k3s-arm64").write_text("K3s")
    archive.write(tmp_path / "tegra-device-plugin-arm64.tar.gz", ["tegra-device-plugin:1"], "arm64", {}, {})
    archive.write(
        tmp_path / "device-query-arm64.tar.gz", ["docker.io/library/device-query:r36"], "arm64", {}, {}
    )
    archive.write(
        tmp_path / "k3s-airgap-images-arm64.tar.gz",
        ["docker.io/rancher/mirrored-pause:3.6", "rancher/coredns:1"],
        "arm64",
        {},
        {},
    )
    return tmp_path


def test_bundle_that_was_written_is_one_that_can_be_installed_from(directory: Path) -> None:
    versions = index.describe(str(directory), "arm64", "v1.33.5+k3s1")
    index.put(str(directory / "bundle.yml"), json.dumps(versions))
    index.put(str(directory / "SHA256SUMS"), index.sums(str(directory)))
    facts = bundle_content.inspect(str(directory))
    assert facts["errors"] == []
    assert {entry["error"] for entry in facts["files"].values()} == {None}
    assert (
        facts["versions"]
        == versions
        == {
            "version": 1,
            "k3s_version": "v1.33.5+k3s1",
            "plugin_image": "tegra-device-plugin:1",
            "pause_image": "rancher/mirrored-pause:3.6",
        }
    )


@pytest.mark.parametrize(
    ("names", "words"), [(("a:1", "b:1"), "2 images: a:1, b:1"), ((), "0 images: none has a name")]
)
def test_archive_without_exactly_one_image_is_refused(
    directory: Path, names: tuple[str, ...], words: str
) -> None:
    archive.write(directory / "device-query-arm64.tar.gz", [*names], "arm64", {}, {})
    with pytest.raises(BundleError, match=words):
        index.describe(str(directory), "arm64", "v1")


def test_wheels_of_the_controller_are_verified_and_are_not_those_of_boards(directory: Path) -> None:
    wheel = directory / "controller/jinja2-3.1.6-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    versions = index.describe(str(directory), "arm64", "v1.33.5+k3s1")
    assert "jtop" not in versions
    index.put(str(directory / "bundle.yml"), json.dumps(versions))
    index.put(str(directory / "SHA256SUMS"), index.sums(str(directory)))
    assert f"controller/{wheel.name}" in bundle_content.inspect(str(directory))["files"]
    wheel.write_text("changed")
    facts = bundle_content.inspect(str(directory))
    assert {name for name, file in facts["files"].items() if file["error"]} == {f"controller/{wheel.name}"}


@pytest.mark.parametrize("name", ["other/x.whl", "controller/a/x.whl", "../controller/x.whl", "/x.whl"])
def test_other_directories_in_sha256sums_are_refused(name: str) -> None:
    with pytest.raises(BundleError, match="line 1: not a line of sha256sum"):
        parse_sums(f"{'0' * 64}  {name}\n")


def test_version_of_jetson_stats_is_read_from_its_wheel(directory: Path) -> None:
    wheels = ["distro-1.9.0-py3-none-any.whl", "jetson_stats-7.2.2-py3-none-any.whl"]
    for name in wheels:
        (directory / name).touch()
    assert index.describe(str(directory), "arm64", "v1")["jtop"] == {"version": "7.2.2", "wheels": wheels}


@pytest.mark.parametrize("versions", [[], ["7.2.2", "7.3.0"]])
def test_wheels_without_one_jetson_stats_are_refused(directory: Path, versions: list[str]) -> None:
    for name in ("distro-1.9.0", *(f"jetson_stats-{version}" for version in versions)):
        (directory / f"{name}-py3-none-any.whl").touch()
    with pytest.raises(BundleError, match=f"{len(versions)} wheels of jetson-stats"):
        index.describe(str(directory), "arm64", "v1")


def test_wheels_without_a_bundle_are_those_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "stray.whl").touch()
    found = bundle_content.inspect_built(str(tmp_path), "v1", "jtop-1")
    assert (found["versions"], found["files"]) == ({"k3s_version": "v1"}, {})
    assert found["wheels"] == str(tmp_path / "jtop-1")
    wheels = ["jetson_stats-7.2.2-py3-none-any.whl", "smbus2-0.6.1-py2.py3-none-any.whl"]
    for name in wheels:
        (tmp_path / "jtop-1" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "jtop-1" / name).write_text(name)
    found = bundle_content.inspect_built(str(tmp_path), "v1", "jtop-1")
    assert found["versions"]["jtop"] == {"version": "7.2.2", "wheels": wheels}
    assert {name: state["error"] for name, state in found["files"].items()} == dict.fromkeys(wheels)
    assert found["files"][wheels[0]]["sha256"] == hashlib.sha256(wheels[0].encode()).hexdigest()


BUNDLED = """\
- hosts: server
  gather_facts: false
  vars: {bundle_jtop: %s}
  tasks:
    - ansible.builtin.debug: {msg: "jtop {{ 'is' if bundle_jtop | bool else 'is not' }} in the bundle"}
"""


@pytest.mark.parametrize(
    ("boards", "here", "bundled"),
    [
        ({}, {}, False),
        ({"jetson-2": {"gpu_device_plugin_jtop": True}}, {}, True),
        ({"jetson-2": {"gpu_device_plugin_jtop": "no"}}, {}, False),
        ({}, {"gpu_device_plugin_jtop": "true"}, True),
    ],
)
def test_the_bundle_has_jtop_if_a_board_is_to_have_it(
    boards: dict[str, Data], here: Data, bundled: bool, tmp_path: Path
) -> None:
    default = yaml.safe_load((ROLES / "bundle/defaults/main.yml").read_text())["bundle_jtop"]
    groups = {"server": ["jetson-1"], "k3s_cluster": {"jetson-1": {}, "jetson-2": {}} | boards}
    run = play_text(tmp_path, BUNDLED % json.dumps(default), groups=groups, variables=here)
    assert f"jtop is{'' if bundled else ' not'} in the bundle" in run.said


def test_index_is_written_once(tmp_path: Path) -> None:
    assert index.put(str(tmp_path / "a"), "text") is True
    assert index.put(str(tmp_path / "a"), "text") is False
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


KNOWN = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: bundle}
    - ansible.builtin.debug:
        msg: "{{ preflight_bundle_info.files | first }} {{ preflight_bundle_info.versions.k3s_version }}"
"""
BUILD = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        jetson:
          {arch: aarch64, kernel: 5.15.148-tegra, soc: tegra234,
           docker: {running: true, images: {}, contents: {}, kept: {}, stand_by_settings: null}}
        cacheable: true
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: bundle}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: build}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: plan}
    - ansible.builtin.debug:
        msg: >-
          {{ __gpu_device_plugin_plan.image.name }} {{ __gpu_device_plugin_plan.image.identity }}
          {{ preflight_bundle_info.path }}
"""
IMAGE = f"registry.example:5000/tegra-device-plugin:1@sha256:{'0' * 64}"


def test_built_images_replace_the_bundle(tmp_path: Path) -> None:
    archive.write(tmp_path / "tegra-device-plugin-arm64.tar.gz", ["a:1"], "arm64", {}, {})
    variables = {"__preflight_built": str(tmp_path), "__preflight_k3s": "v1"}
    run = play_text(tmp_path, KNOWN, variables=variables)
    assert "tegra-device-plugin-arm64.tar.gz v1" in run.said


# In place of what builds the image, once its environment is there: the archive is a file beside the checkout,
# or one that the environment names.
BUILDER = """\
#!/bin/sh
[ -e image ] || exit 3
archive=${ARCHIVE-../archive}
[ -e "$archive" ] || { echo 'lab: a line before' >&2; echo 'error: no Docker' >&2; exit 1; }
mkdir -p dist
cp "$archive" "dist/tegra-device-plugin-$4.tar.gz"
"""
# In place of what finds Docker.
FINDER = """\
import pathlib, sys
why = "error: this computer has neither Docker nor Podman that answers"
sys.exit(pathlib.Path("no-engine").exists() and why)
"""
# In place of what packs the sources.
PACKER = """\
import sys, tarfile
with tarfile.open(sys.argv[1], "w") as tar:
    tar.add("tools")
    tar.add(".venv")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name, text in {
        "tools/bootstrap.sh": 'touch "$1"',
        ".venv/bin/python": BUILDER,
        "images/arm64/builder.py": FINDER,
        "images/arm64/sources.py": PACKER,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root


def build(
    directory: Path,
    checkout: Path,
    *arguments: str,
    fails: bool = False,
    play: str = BUILD,
    archive: str | None = None,
    **variables: Any,
) -> Run:
    """Run the play on two boards; `archive` is what a board builds."""
    settings = {
        "__preflight_built": f"{checkout}/dist",
        "__gpu_device_plugin_checkout": str(checkout),
        "__gpu_device_plugin_build_base": str(directory),
        **variables,
    }
    groups = {name: ["jetson-1", "jetson-2"] for name in ("server", "k3s_cluster")}
    given = {} if archive is None else {"ARCHIVE": archive}
    return play_text(directory, play, *arguments, groups=groups, variables=settings, fails=fails, **given)


WHEELS = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: bundle}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: build}
    - ansible.builtin.debug:
        msg: "{{ preflight_bundle_info.versions }} {{ preflight_bundle_info.files | length }}"
"""
WITH_JTOP: Any = {"gpu_device_plugin_image": IMAGE, "gpu_device_plugin_jtop": True}


@pytest.mark.acceptance
def test_without_a_bundle_the_wheels_of_jtop_are_downloaded_once(tmp_path: Path, checkout: Path) -> None:
    run = build(tmp_path, checkout, play=WHEELS, **WITH_JTOP)
    (directory,) = (checkout / "dist").iterdir()
    names = sorted(one.name for one in directory.iterdir())
    assert all(f"'{name}'" in run.said for name in names)
    assert any(name.startswith("jetson_stats-7") for name in names)
    assert run.said.count(f"}} {len(names)}") == 2
    assert build(tmp_path, checkout, play=WHEELS, **WITH_JTOP).stdout.count("changed=0") == 2
    # Nothing is downloaded for boards without the setting.
    again = tmp_path / "another"
    again.mkdir()
    build(tmp_path, again, play=WHEELS, gpu_device_plugin_image=IMAGE)
    assert not (again / "dist").exists()


def test_wheels_of_jtop_that_cannot_be_downloaded_stop_no_run(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    run = build(tmp_path, checkout, play=WHEELS, **WITH_JTOP)
    assert "The wheels of jetson-stats could not be downloaded to this computer" in run.said
    assert run.stdout.count("failed=0") == 2
    assert run.said.count("'k3s_version'") == 2, "both boards go on"
    assert "jtop" not in run.said.rpartition("k3s_version")[2].partition("}")[0]


@pytest.mark.acceptance
def test_image_that_is_missing_or_outdated_is_built_once(tmp_path: Path, checkout: Path) -> None:
    archive.write(tmp_path / "archive", ["tegra-device-plugin:1"], "arm64", {}, {})
    checked = build(tmp_path, checkout, "--check")
    assert "The plugin's image for arm64 would be built on this computer (some minutes)." in checked.said
    assert not (checkout / "dist").exists()
    run = build(tmp_path, checkout)
    assert "is built on this computer" in run.said
    assert run.said.count("tegra-device-plugin:1 sha256:") == 2
    assert build(tmp_path, checkout).stdout.count("changed=0") == 2
    source = checkout / "plugin/tegra_device_plugin/cli.py"  # of an update of the checkout
    source.parent.mkdir(parents=True)
    source.touch()
    assert "is built on this computer" in build(tmp_path, checkout).said
    assert build(tmp_path, checkout).stdout.count("changed=0") == 2


def test_failed_build_of_the_image_is_reported_with_advice(tmp_path: Path, checkout: Path) -> None:
    run = build(tmp_path, checkout, fails=True)
    assert (
        "The plugin's image could not be built on this computer: no Docker. Do one of these: install Docker "
        "or Podman on this computer; let a board with JetPack 6 or newer build it"
    ) in run.said


BUILDABLE = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: buildable}
"""


@pytest.mark.parametrize("has", ["nothing", "image", "setting"])
def test_missing_engine_is_said_before_any_board_is_asked(tmp_path: Path, checkout: Path, has: str) -> None:
    (checkout / "no-engine").touch()
    if has == "image":
        (checkout / "dist").mkdir()
        archive.write(checkout / "dist/tegra-device-plugin-arm64.tar.gz", ["a:1"], "arm64", {}, {})
    on_board, fails = has == "setting", has == "nothing"
    run = build(tmp_path, checkout, play=BUILDABLE, fails=fails, gpu_device_plugin_build_on_board=on_board)
    words = (
        "The plugin's image has to be built, and this computer has neither Docker nor Podman that answers. "
        "Do one of these: install Docker or Podman on this computer; let a board"
    )
    assert (words in run.said) is fails


ROLE = "    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: "
ON_BOARD = BUILD.replace(f"{ROLE}build}}\n", f"{ROLE}build}}\n{ROLE}build_on_board}}\n").replace(
    "{arch: aarch64,", "{arch: aarch64, jetpack: '6.2',"
)
CHOSEN = {"play": ON_BOARD, "gpu_device_plugin_build_on_board": True}
ARCHIVE_NAME = "tegra-device-plugin-arm64.tar.gz"


def test_board_builds_the_image_for_the_others(tmp_path: Path, checkout: Path) -> None:
    (checkout / "no-engine").touch()
    archive.write(tmp_path / "made", ["tegra-device-plugin:1"], "arm64", {}, {})
    settings: dict[str, Any] = {**CHOSEN, "archive": str(tmp_path / "made")}
    checked = build(tmp_path, checkout, "--check", **settings)
    assert "The plugin's image for arm64 would be built on jetson-1" in checked.said
    assert not (checkout / "dist").exists()
    run = build(tmp_path, checkout, **settings)
    assert "The plugin's image for arm64 is built on jetson-1" in run.said
    assert run.said.count("tegra-device-plugin:1 sha256:") == 2
    assert [path.name for path in (checkout / "dist").iterdir()] == [ARCHIVE_NAME]
    assert not (tmp_path / "jetson-k3s/uploads").exists()
    assert build(tmp_path, checkout, **settings).stdout.count("changed=0") == 2


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (None, "jetson-1 could not build the plugin's image: no Docker. The board needs the Internet"),
        (
            ["tegra-device-plugin:1", "rancher/mirrored-pause:3.6"],
            "is not the plugin's image: it has rancher/mirrored-pause:3.6, tegra-device-plugin:1, and not",
        ),
    ],
)
def test_board_that_builds_no_image_is_named_on_the_others(
    tmp_path: Path, checkout: Path, images: list[str] | None, words: str
) -> None:
    if images:
        archive.write(tmp_path / "made", images, "arm64", {}, {})
    settings: dict[str, Any] = {**CHOSEN, "archive": str(tmp_path / "made")}
    run = build(tmp_path, checkout, fails=True, **settings)
    assert words in run.said
    assert "jetson-2 gets no image of the plugin, because jetson-1 has built none" in run.said
    assert not [*(checkout / "dist").iterdir()]
    assert not (tmp_path / "jetson-k3s/uploads").exists()


def test_boards_that_cannot_build_are_refused(tmp_path: Path, checkout: Path) -> None:
    old = ON_BOARD.replace("'6.2'", "'5.1.3'")
    run = build(tmp_path, checkout, fails=True, play=old, gpu_device_plugin_build_on_board=True)
    assert "No board of this run can build the plugin's image for arm64" in run.said
    assert not (checkout / "dist").exists()


def test_nothing_is_built_where_a_registry_has_the_image(tmp_path: Path, checkout: Path) -> None:
    run = build(tmp_path, checkout, gpu_device_plugin_image=IMAGE)
    assert run.stdout.count("changed=0") == 2
    assert f"{IMAGE} sha256:{'0' * 64} {checkout}/dist" in run.said


PLAYBOOK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: binary}
"""
RELEASED, REPLACED = b"K3s", b"another K3s with checksums that fit"
PIN = {"arm64": hashlib.sha256(RELEASED).hexdigest()}


@pytest.mark.parametrize(
    ("page", "pins", "installed"),
    [(RELEASED, {}, RELEASED), (RELEASED, PIN, RELEASED), (REPLACED, PIN, None)],
)
def test_pinned_binary_is_the_only_one_that_is_taken(
    tmp_path: Path, page: bytes, pins: dict[str, str], installed: bytes | None
) -> None:
    release = tmp_path / "v1"
    release.mkdir()
    (release / "k3s-arm64").write_bytes(page)
    (release / "sha256sum-arm64.txt").write_text(f"{hashlib.sha256(page).hexdigest()}  k3s-arm64\n")
    variables = {
        "k3s_version": "v1",
        "preflight_bundle_info": WITHOUT_BUNDLE,
        "k3s_release_url": tmp_path.as_uri(),
        "k3s_sha256": pins,
        "__k3s_binary": str(tmp_path / "k3s"),
        "__k3s_marker": str(tmp_path / "run/restart"),
    }
    play_text(tmp_path, PLAYBOOK, variables=variables, fails=installed is None)
    assert ((tmp_path / "k3s").read_bytes() if (tmp_path / "k3s").exists() else None) == installed


MIRROR = """\
- hosts: localhost
  gather_facts: false
  roles: [jetson_k3s.cluster.bundle]
"""


@pytest.mark.parametrize(("pinned", "refused"), [(False, True), (True, False)])
def test_mirror_without_tls_needs_pinned_files(tmp_path: Path, pinned: bool, refused: bool) -> None:
    files = ("k3s-airgap-images-arm64.tar.gz", "k3s-arm64")
    if pinned:
        pins = "".join(f"{'0' * 64}  v1/{name}\n" for name in files)
        (tmp_path / "k3s-releases.sha256").write_text(pins)
    variables = {
        "jetson_k3s_bundle": str(tmp_path / "bundle"),
        "k3s_version": "v1",
        "k3s_release_url": "http://mirror:planted@127.0.0.1:1/k3s",
    }
    run = play_text(tmp_path, MIRROR, variables=variables, fails=True)
    words = f"Give an address with https://, or write the SHA-256 of {files[0]}, {files[1]} into"
    assert (f"k3s_release_url is http://127.0.0.1:1/k3s. {words}" in run.said) is refused
    assert ("K3s v1 was not downloaded" in run.said) is not refused
    assert "planted" not in run.stdout
