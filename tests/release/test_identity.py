# SPDX-License-Identifier: Apache-2.0
"""The project's owner and address: the same everywhere, and set everywhere by one command."""

import email
import json
import re
import sys
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import project
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules
from markdown_it import MarkdownIt

from images.arm64 import build, context
from release import identity
from release.version import CHECKOUT
from tests.docs import markdown
from tests.release.conftest import ENVIRONMENT, copy_files
from tools.process import run

OWNED = re.compile(rf"\bgithub\.com/([\w-]+)/{identity.NAME}\b|//([\w-]+)\.github\.io/{identity.NAME}\b")
IN_REPOSITORY = re.compile(
    rf"https://github\.com/[\w-]+/{identity.NAME}/(?:blob|raw)/main/([\w./-]+)(?:#([\w-]+))?"
)
# The variable of make, and its value in documents.
OF_MAKE = re.compile(r"\$\(OWNER\)|\bOWNER( \?)?=")
EXCUSED = ("tests/", "release/identity.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the checkout that git knows."""
    copy_files(tmp_path / "tree")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=Copy"]):
        run(["git", "-C", tmp_path / "tree", *command], env=ENVIRONMENT)
    return tmp_path / "tree"


def set_owner(tree: Path, account: str) -> None:
    run(["make", f"PYTHON={sys.executable}", "identity", f"OWNER={account}"], cwd=tree, env=ENVIRONMENT)


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_every_address_of_the_project_has_the_owner_of_pyproject_toml() -> None:
    found = {
        (name, one or page)
        for name, text in identity.texts(CHECKOUT)
        if not name.startswith(EXCUSED)
        for one, page in OWNED.findall(text)
    }
    assert len(found) > 5
    assert [one for one in found if one[1] != identity.owner()] == []


def test_addresses_of_files_in_the_repository_lead_to_files() -> None:
    named = {match for _, text in identity.texts(CHECKOUT) for match in IN_REPOSITORY.findall(text)}
    assert len(named) > 5
    assert [path for path, _ in named if not (CHECKOUT / path).exists()] == []
    headings = [one for one in named if one[1]]
    assert headings
    assert [one for one in headings if one[1] not in markdown.read(CHECKOUT / one[0]).anchors] == []


def test_owner_is_set_in_every_place_and_can_change(tree: Path) -> None:
    for account in ("Jane-Doe", "jane"):
        set_owner(tree, account)
        address = f"https://github.com/{account}/jetson-k3s"
        assert identity.owner(tree) == account
        assert loaded(tree / "galaxy.yml")["repository"] == address
        chart = loaded(tree / "plugin/deploy/chart/Chart.yaml")
        assert (chart["home"], chart["sources"]) == (address, [address])
        assert chart["icon"].startswith(f"{address}/raw/")
        assert chart["maintainers"] == [{"name": account, "url": f"https://github.com/{account}"}]
        assert (tree / ".github/CODEOWNERS").read_text().endswith(f"\n* @{account}\n")
        links = loaded(tree / ".github/ISSUE_TEMPLATE/config.yml")["contact_links"]
        assert all(link["url"].startswith(f"{address}/") for link in links)
        schema = json.loads((tree / "roles/gpu_report/files/verify-report.schema.json").read_text())
        assert schema["$id"].startswith(f"{address}/raw/main/")
        assert f'\nADDRESS = "{address}"\n' in (tree / "plugins/module_utils/project.py").read_text()
        readme = (tree / "README.md").read_text()
        assert f"git clone {address}\n" in readme
        assert f"https://{account}.github.io/jetson-k3s/" in readme
        assert f"git clone {address}\n" in (tree / "tests/docs/cases.yml").read_text()
        left = {
            name
            for name, text in identity.texts(tree)
            if not name.startswith(EXCUSED)
            and re.search(r"\bOWNER\b|no public address|<!-- /?no owner", OF_MAKE.sub("", text))
        }
        assert left == set()


@pytest.mark.parametrize(
    "account", ["OWNER", "", "a/b", "-a", "a--b", "https://github.com/a", "a" * 40, "a\n"]
)
def test_account_that_github_does_not_have_is_refused(tree: Path, account: str) -> None:
    before = dict(identity.texts(tree))
    done = run(
        [sys.executable, "-m", "release.identity", "--", account], cwd=tree, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: OWNER={account} is not an account of GitHub")
    assert dict(identity.texts(tree)) == before


def metadata(tree: Path, out: Path) -> Message:
    """What the plugin's wheel says of itself, built of a checkout."""
    program = f"from pathlib import Path; from release import artifacts; artifacts.wheel(Path({str(out)!r}))"
    run([sys.executable, "-c", program], cwd=tree, env=ENVIRONMENT)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(packed.read(name))


def test_wheel_names_the_address_and_has_a_description_without_relative_links(
    tree: Path, tmp_path: Path
) -> None:
    set_owner(tree, "acme")
    said = metadata(tree, tmp_path / "dist")
    address = "https://github.com/acme/jetson-k3s"
    urls = dict(line.split(", ") for line in said.get_all("Project-URL", []))
    assert urls.pop("Repository") == address
    assert set(urls) == {"Documentation", "Issues", "Changelog"}
    assert all(url.startswith(f"{address}/") for url in urls.values())
    assert said["Author"] == ", ".join(loaded(CHECKOUT / "galaxy.yml")["authors"])
    assert said["License-Expression"] == "Apache-2.0"
    classifiers = said.get_all("Classifier", [])
    assert "Programming Language :: Python :: 3 :: Only" in classifiers
    assert [one for one in classifiers if one.startswith("Private")] == []
    description = str(said.get_payload())
    tokens = [child for token in MarkdownIt().parse(description) for child in token.children or ()]
    links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
    assert len(links) > 3
    assert [link for link in links if not urlsplit(link).scheme] == []
    assert description.startswith("# tegra-device-plugin\n")


@pytest.mark.skipif(identity.owner() != identity.PLACEHOLDER, reason="the project has an owner")
def test_wheel_without_owner_is_refused_by_package_indexes(tmp_path: Path) -> None:
    said = metadata(CHECKOUT, tmp_path)
    assert "Private :: Do Not Upload" in said.get_all("Classifier", [])
    assert "no public address yet" in str(said.get_payload())


def test_findings_lead_to_the_address_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", "")
    assert preflight_rules.guide("clock") == "docs/troubleshooting.md#clock"
    monkeypatch.setattr(project, "ADDRESS", identity.address("acme"))
    link = preflight_rules.guide("clock")
    assert link == "https://github.com/acme/jetson-k3s/blob/main/docs/troubleshooting.md#clock"


def test_findings_have_the_owner_of_pyproject_toml() -> None:
    assert identity.address(identity.owner()) == project.ADDRESS


@pytest.mark.parametrize("account", [identity.PLACEHOLDER, "acme"])
def test_image_names_its_source_once_there_is_one(account: str) -> None:
    address = identity.address(account)
    dockerfile = (context.HERE / "Dockerfile").read_text()
    assert 'org.opencontainers.image.source="${SOURCE}"' in dockerfile
    labels = {"org.opencontainers.image.source": address, "org.opencontainers.image.title": "one"}
    config = {"config": {"Env": [], "Entrypoint": [], "Cmd": [], "Labels": labels}}
    kept = build._settings(json.dumps(config).encode())["Labels"]
    expected = {"org.opencontainers.image.title": "one"}
    assert kept == expected | ({"org.opencontainers.image.source": address} if address else {})


def test_tree_without_owner_cannot_be_released(tree: Path) -> None:
    check = [sys.executable, "-m", "release", "--check", "9.0.0"]
    refusal = "nobody owns the project"
    if identity.owner(tree) == identity.PLACEHOLDER:
        assert refusal in run(check, cwd=tree, env=ENVIRONMENT, check=False).stderr
    set_owner(tree, "acme")
    found = run(check, cwd=tree, env=ENVIRONMENT, check=False)
    assert "cannot be released" in found.stderr
    assert refusal not in found.stderr
