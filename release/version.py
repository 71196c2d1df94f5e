# SPDX-License-Identifier: Apache-2.0
"""The version of everything: pyproject.toml has it; package, chart, collection and image follow it."""

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECT = "pyproject.toml"
CHART = "plugin/deploy/chart/Chart.yaml"
COLLECTION = "galaxy.yml"
PACKAGE = "plugin/tegra_device_plugin/version.py"
# What names the image with its tag, or a release: manifests for people who use kubectl alone, and documents.
FOLLOWERS = ("plugin/deploy/**/*.yaml", "docs/**/*.md", "docs/examples/*.yaml", "tests/docs/cases.yml")
# Three numbers are a release for SemVer and for PEP 440; the two write pre-releases differently.
_RELEASE = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_IN_PROJECT = re.compile(r'^(version = ")([^"]*)(")$', re.MULTILINE)
_IN_PACKAGE = re.compile(r'^(VERSION = ").*(")$', re.MULTILINE)
_IN_YAML = re.compile(r"^((?:v|appV)ersion: ).*$", re.MULTILINE)
# Not the version of NVIDIA's chart.
NAMED = re.compile(
    r"(\btegra-device-plugin:|\?ref=v|(?<!/nvidia-device-plugin )--version )([0-9]+\.[0-9]+\.[0-9]+)\b"
)


def current() -> str:
    """Return the version that pyproject.toml has."""
    match = _IN_PROJECT.search((CHECKOUT / PROJECT).read_text())
    if match is None:
        raise ValueError(f"{PROJECT} has no version")
    return match[2]


def numbers(version: str) -> tuple[int, ...] | None:
    """Return the three numbers of a release, to compare it by; None for anything else."""
    match = _RELEASE.fullmatch(version)
    return tuple(map(int, match.groups())) if match else None


def set_to(version: str, tree: Path) -> dict[Path, str]:
    """Return the texts that files of a checkout have to get, by path, for it to be of another version."""
    project = tree / PROJECT
    texts = {project: _IN_PROJECT.sub(rf"\g<1>{version}\g<3>", project.read_text(), count=1)}
    for pattern in FOLLOWERS:
        for path in sorted(path for path in tree.glob(pattern) if not path.is_symlink()):
            texts[path] = NAMED.sub(rf"\g<1>{version}", path.read_text())
    package = tree / PACKAGE
    texts[package] = _IN_PACKAGE.sub(rf"\g<1>{version}\g<2>", package.read_text())
    for path in (tree / CHART, tree / COLLECTION):
        texts[path] = _IN_YAML.sub(rf"\g<1>{version}", path.read_text())
    return {path: text for path, text in texts.items() if text != path.read_text()}
