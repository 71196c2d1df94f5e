# SPDX-License-Identifier: Apache-2.0
"""publish.yml pushes a release's signed files, and nothing else. Scripts replace the programs that push."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import signature
from release.version import CHECKOUT
from tests.release.conftest import make_key
from tools.process import ToolError, run

WORKFLOWS = CHECKOUT / ".github/workflows"
SECRETS = {"REGISTRY_PASSWORD": "hunter2-registry", "GALAXY_TOKEN": "hunter2-galaxy"}
EXPRESSION = re.compile(r"\$\{\{ ([\w.]+) }}")
# Records its arguments; `gh release download TAG --repo REPOSITORY --dir DIRECTORY` brings the release.
PUSHER = """\
#!/bin/sh
printf '%s\\n' "${{0##*/}} $*" >> {record}
[ "${{0##*/}}" != gh ] || {{ mkdir -p "$7" && cp {files}/* "$7"; }}
"""


@dataclass
class Release:
    """A release on GitHub, and a runner with a checkout of its tag."""

    home: Path
    key: Path
    tag: str = "v0.2.0"
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRETS))

    @property
    def files(self) -> Path:
        return self.home / "release-on-github"

    @property
    def called(self) -> list[str]:
        record = self.home / "called"
        return record.read_text().splitlines() if record.exists() else []

    def make(self, number: str) -> None:
        """Have the files that `make release` makes of a version, signed."""
        shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir()
        for name in (
            "tegra-device-plugin.oci.tar",
            "tegra-device-plugin-arm64.tar.gz",
            f"tegra-device-plugin-{number}.tgz",
            f"jetson_k3s-cluster-{number}.tar.gz",
            "bundle.yml",
        ):
            (self.files / name).write_text(f"{name} of {number}")
        self.sign()

    def sign(self) -> None:
        paths = sorted(path for path in self.files.iterdir() if not path.name.startswith("SHA256SUMS"))
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
        (self.files / "SHA256SUMS").write_text(sums)
        (self.files / "SHA256SUMS.sig").unlink(missing_ok=True)
        signature.sign(self.files / "SHA256SUMS", self.key)

    def publish(self) -> None:
        """Run the steps of publish.yml as a runner does. Raises ToolError by the first that fails."""
        job = yaml.safe_load((WORKFLOWS / "publish.yml").read_text())["jobs"]["publish"]
        known = {
            "github.event.release.tag_name": self.tag,
            "github.token": "hunter2-github",
            "vars.REGISTRY": "registry.example/owner",
            "vars.REGISTRY_USER": "robot",
            "vars.RELEASE_SIGNERS": signature.allowed_signers(self.key).strip(),
            **{f"secrets.{name}": self.secrets.get(name, "") for name in SECRETS},
        }

        def environment(of: dict[str, Any]) -> dict[str, str]:
            texts = of.get("env", {}).items()
            return {name: EXPRESSION.sub(lambda found: known[found[1]], str(text)) for name, text in texts}

        output = self.home / "output"
        for step in job["steps"]:
            if "run" not in step:
                continue
            output.write_text("")
            own = {
                "PATH": f"{self.home}/bin:{os.environ['PATH']}",
                "GITHUB_REPOSITORY": "owner/project",
                "GITHUB_OUTPUT": str(output),
            }
            run(
                ["bash", "-e", "-c", step["run"]],
                cwd=self.home / "checkout",
                env=own | environment(job) | environment(step),
            )
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                known[f"steps.{step['id']}.outputs.{name}"] = value

    def add(self, name: str) -> None:
        (self.files / name).write_text("of an attacker")

    def replace(self, name: str) -> None:
        assert (self.files / name).exists()
        self.add(name)

    def remove(self, name: str) -> None:
        (self.files / name).unlink()


@pytest.fixture
def release(tmp_path: Path) -> Release:
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    tools.mkdir()
    for part in ("release", "tools"):
        shutil.copytree(CHECKOUT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    made = Release(tmp_path, make_key(tmp_path / "key"))
    pusher = PUSHER.format(record=tmp_path / "called", files=made.files)
    for name in ("gh", "skopeo", "helm", "ansible-galaxy"):
        (tools / name).write_text(pusher)
        (tools / name).chmod(0o755)
    (checkout / "tools/bootstrap.sh").write_text(f"mkdir .venv; ln -s {tools} .venv/bin")
    made.make("0.2.0")
    return made


def pushed(release: Release) -> list[str]:
    """What was pushed, or logged in to."""
    return [line for line in release.called if not line.startswith("gh ")]


def test_signed_files_of_the_tag_are_pushed_and_no_secret_is_an_argument(release: Release) -> None:
    release.publish()
    assert pushed(release) == [
        "skopeo login --username robot --password-stdin registry.example",
        "helm registry login --username robot --password-stdin registry.example",
        "skopeo copy --all oci-archive:files/tegra-device-plugin.oci.tar "
        "docker://registry.example/owner/tegra-device-plugin:0.2.0",
        "helm push files/tegra-device-plugin-0.2.0.tgz oci://registry.example/owner/charts",
        "ansible-galaxy collection publish files/jetson_k3s-cluster-0.2.0.tar.gz",
    ]
    assert "hunter2" not in "".join(release.called)


def test_collection_is_published_only_with_a_token(release: Release) -> None:
    del release.secrets["GALAXY_TOKEN"]
    release.publish()
    assert not any(line.startswith("ansible-galaxy") for line in release.called)


def old_set_under_a_new_tag(release: Release) -> None:
    release.make("0.1.0")


def old_set_with_files_of_the_new_version_that_nobody_signed(release: Release) -> None:
    release.make("0.1.0")
    for name in ("tegra-device-plugin-0.2.0.tgz", "jetson_k3s-cluster-0.2.0.tar.gz"):
        release.add(name)


def other_key(release: Release) -> None:
    release.key = make_key(release.home / "other")


def sums_that_differ_from_the_signed_ones(release: Release) -> None:
    sums = release.files / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("bundle.yml", "bundle.yaml"))


def name_in_another_directory(release: Release) -> None:
    sums = release.files / "SHA256SUMS"
    sums.write_text(f"{sums.read_text()}{'0' * 64}  ../key\n")
    (release.files / "SHA256SUMS.sig").unlink()
    signature.sign(sums, release.key)


def tag_that_is_no_version(release: Release) -> None:
    release.tag = "v0.2.0-rc.1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (old_set_under_a_new_tag, "this is the release of another version"),
        (old_set_with_files_of_the_new_version_that_nobody_signed, "this is the release of another version"),
        (lambda release: release.add("install.sh"), "install.sh is not in SHA256SUMS: nobody signed it"),
        (lambda release: release.remove("bundle.yml"), "bundle.yml is missing from the release"),
        (lambda release: release.replace("tegra-device-plugin.oci.tar"), "SHA256SUMS says"),
        (lambda release: release.remove("SHA256SUMS.sig"), "SHA256SUMS.sig"),
        (other_key, "Could not verify signature"),
        (sums_that_differ_from_the_signed_ones, "incorrect signature"),
        (name_in_another_directory, "no line for one more file of the release: "),
        (tag_that_is_no_version, "'v0.2.0-rc.1' is none of a release"),
    ],
)
def test_other_release_is_not_published(
    release: Release, change: Callable[[Release], None], message: str
) -> None:
    change(release)
    with pytest.raises(ToolError) as failed:
        release.publish()
    assert pushed(release) == []
    assert message in str(failed.value)


def test_secrets_are_behind_an_environment_and_no_other_workflow_has_any() -> None:
    with_secrets = [path.name for path in WORKFLOWS.iterdir() if "secrets." in path.read_text()]
    assert with_secrets == ["publish.yml"]
    (job,) = yaml.safe_load((WORKFLOWS / "publish.yml").read_text())["jobs"].values()
    assert job["environment"] == "release"


@pytest.mark.parametrize(
    "path", [*WORKFLOWS.iterdir(), *(CHECKOUT / "docs/ci").glob("*.yml")], ids=lambda path: path.name
)
def test_actions_are_pinned_by_their_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[0-9.]+", one)] == []


def test_an_action_has_one_commit_in_all_files() -> None:
    files = [*WORKFLOWS.iterdir(), *(CHECKOUT / "docs/ci").glob("*.yml")]
    used = {one for path in files for one in re.findall(r"uses: (.*)", path.read_text())}
    names = [one.partition("@")[0] for one in used]
    assert sorted(names) == sorted(set(names)), used
