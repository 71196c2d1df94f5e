# SPDX-License-Identifier: Apache-2.0
"""What the documents say was tried: boards on the README's first screen, and releases of K3s."""

import json
import re
from pathlib import Path

import yaml
from tegra_device_plugin.version import VERSION

from tests.docs import CHECKOUT, markdown
from tests.lab import k3s
from tools import install_board
from tools.process import run

DEFAULTS = (CHECKOUT / "roles/bundle/defaults/main.yml").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables in a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", text, re.M)
    ]


def test_first_screen_of_the_readme_counts_real_boards_apart_from_simulated_ones() -> None:
    first = (CHECKOUT / "README.md").read_text().partition("\n## ")[0]
    kinds = len(json.loads((CHECKOUT / "tests/boards/boards.json").read_text())["boards"])
    real, virtual = rows(first)[2:4]
    assert real[0].startswith("real Jetsons: **0**")
    assert virtual[0].startswith(f"virtual boards, simulated: {kinds} kinds")
    assert first[: first.index(real[0])].count("\n") < 24, "of a terminal's first screen"


def test_default_k3s_is_in_the_table_of_releases_with_its_date() -> None:
    (default,) = re.findall(r"^__bundle_k3s_newest: (\S+)$", DEFAULTS, re.M)
    (minor, date) = re.findall(r"newest patch of K3s (\S+) on (\S+)\.", DEFAULTS)[0]
    assert default.startswith(f"v{minor}.")
    (table,) = [
        section.text
        for section in markdown.read(CHECKOUT / "docs/compatibility.md").sections
        if section.title == "Releases of K3s"
    ]
    found = {row[0]: row[1] for row in rows(table)[2:]}
    assert found[default] == date
    assert set(found) == {default, install_board.K3S_FOR_CGROUP_V1, k3s.VERSION}


def test_examples_have_todays_releases() -> None:
    """Of K3s those that are in the table of releases; of what a bundle brings, what this checkout has."""
    (default,) = re.findall(r"^__bundle_k3s_newest: (\S+)$", DEFAULTS, re.M)
    pages = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    blocks = [block.text for page in pages for block in markdown.read(page).blocks]
    named = {one for text in blocks for one in re.findall(r"v1\.\d+\.\d+\+k3s\d+", text)}
    assert named
    assert named <= {default, install_board.K3S_FOR_CGROUP_V1, k3s.VERSION}
    (bundle,) = [yaml.safe_load(text) for text in blocks if text.startswith("# bundle.yml")]
    wheels = (CHECKOUT / "roles/bundle/files/requirements-jtop.txt").read_text()
    assert bundle["k3s_version"] == default
    assert bundle["plugin_image"] == f"tegra-device-plugin:{VERSION}"
    assert f"jetson-stats=={bundle['jtop']['version']}" in wheels


def test_updates_are_proposed_for_each_list_of_packages_and_each_go_module() -> None:
    updates = yaml.safe_load((CHECKOUT / ".github/dependabot.yml").read_text())["updates"]
    places = {
        one["package-ecosystem"]: {place.strip("/") for place in one.get("directories", [])}
        for one in updates
    }
    listed = run(["git", "ls-files"], cwd=CHECKOUT).stdout.splitlines()
    hashes = [name for name in listed if name.endswith(".txt") and "--hash=" in (CHECKOUT / name).read_text()]
    assert hashes
    assert {str(Path(name).parent) for name in hashes} | {""} == places["pip"]
    modules = {str(Path(name).parent) for name in listed if name.endswith("/go.mod")}
    pinned = {"tests/lab/go/cni", "tests/lab/go/k3s"}  # of one release of K3s
    assert modules - pinned == places["gomod"]


def test_contributing_names_targets_and_paths_that_exist() -> None:
    page = markdown.read(CHECKOUT / "CONTRIBUTING.md")
    blocks = "\n".join(block.text for block in page.blocks)
    named = set(re.findall(r"^make ([a-z0-9-]+)", "\n".join([*page.code, blocks]), re.MULTILINE))
    targets = set(re.findall(r"^([a-z0-9-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert named
    assert named - targets == set()
    paths = {code for code in page.code if re.fullmatch(r"[\w.-]+(/[\w.*-]+)+\.(?:py|yml|txt|toml)", code)}
    assert paths
    places = ("", "roles/*/")  # a role's own path is written without the role
    lost = [path for path in paths if not any(any(CHECKOUT.glob(place + path)) for place in places)]
    assert lost == []


def test_each_ignored_place_of_a_person_is_in_the_list_of_generated_files() -> None:
    """Caches of tools, whose names end in _cache or begin with `__`, are not."""
    sections = markdown.read(CHECKOUT / "CONTRIBUTING.md").sections
    (table,) = [section.text for section in sections if section.title == "Generated files"]
    ignored = [line.strip("/") for line in (CHECKOUT / ".gitignore").read_text().split()]
    tools = re.compile(r".*_cache|__pycache__|\*\.egg-info|\*_pb2\.pyi|\.hypothesis|\.ansible")
    assert [place for place in ignored if not tools.fullmatch(place) and f"`{place}" not in table] == []
