# SPDX-License-Identifier: Apache-2.0
"""`make release`: what can be released, and a release from a checkout of its own with a simulated image."""

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from tegra_device_plugin.version import VERSION

from release import changelog, plan, signature, version
from release.plan import REQUIRED
from release.version import CHECKOUT
from tests.release.conftest import CHANGES, DURING_BUILD, ENVIRONMENT, Checkout, make_key
from tools.process import run
from tools.suites import Ran, parsed

TODAY = "2031-02-03"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def ran(commit: str = COMMIT, tests: int = 2, **outcomes: str) -> Ran:
    """Return a run of a suite; by default it is complete and green."""
    return Ran(commit, tests, outcomes or {"one": "passed", "two": "skipped"})


RAN: dict[str, Ran | None] = {"unit": ran(), "lab": ran(), "acceptance": ran(), "arm64": None}
READY = plan.State(
    branch="main",
    commit=COMMIT,
    uncommitted=(),
    owner="somebody",
    tags=frozenset({"v0.9.1", "v0.10.0", "vendor", "v1.0.0-rc.1", "3.0.0"}),
    built=frozenset({"0.9.1", "tegra-device-plugin.oci.tar"}),
    changelog="# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.10.0] - 2030-01-01\n\n- Old.\n",
    unsigned="",
    ran=RAN,
)


def against(wanted: str, **different: object) -> list[str]:
    """Return the reasons against a release from a checkout that differs from one that is ready."""
    return plan.refusals(wanted, dataclasses.replace(READY, **different), TODAY)  # type: ignore[arg-type] # by name


@pytest.mark.parametrize("wanted", ["0.10.1", "1.0.0", "10.0.0"])
def test_newer_release_of_a_ready_checkout_has_nothing_against_it(wanted: str) -> None:
    assert against(wanted) == []


@pytest.mark.parametrize("wanted", ["", "v1.0.0", "01.0.0", "1.0.0-rc.1", "1.0.0\n", "1.0.٣"])
def test_invalid_version_is_refused(wanted: str) -> None:
    (reason,) = against(wanted)
    assert "is not a release: write three numbers" in reason


@pytest.mark.parametrize("wanted", ["0.10.0", "0.9.2", "0.9.10", "0.0.0"])
def test_version_that_is_not_newer_by_its_numbers_is_refused(wanted: str) -> None:
    assert f"VERSION={wanted} is not newer than 0.10.0, the last release: choose a higher one" in against(
        wanted
    )


@pytest.mark.parametrize("known", [{"tags": frozenset()}, {"changelog": "## [Unreleased]\n\n- New.\n"}])
def test_last_release_is_known_by_its_tag_or_by_the_changelog(known: dict[str, object]) -> None:
    (reason,) = against("0.9.9", **known)
    assert "not newer than 0.10.0" in reason


@pytest.mark.parametrize(
    ("different", "reason"),
    [
        ({"branch": "fix"}, "releases are made on main, this is fix: git switch main"),
        ({"branch": ""}, "this is no branch"),
        ({"uncommitted": (" M Makefile", "?? a")}, "commit or stash them\n       M Makefile\n      ?? a"),
        (
            {"owner": "OWNER"},
            "nobody owns the project, so its links lead nowhere: make identity OWNER=ACCOUNT",
        ),
        ({"unsigned": "no key signs it: name yours"}, "no key signs it: name yours"),
        ({"ran": RAN | {"lab": None}}, "the suite lab has no record, this is 01234567: make test"),
        (
            {"ran": RAN | {"acceptance": ran("f" * 40)}},
            "the suite acceptance ran last on ffffffff, this is 01234567: make acceptance",
        ),
        (
            {"ran": RAN | {"acceptance": ran(one="passed", two="failed")}},
            "the suite acceptance has not passed: 2 tests: 1 passed, 1 failed. Mend it, then:",
        ),
        (
            {"ran": RAN | {"unit": ran(tests=3)}},
            "the suite unit has not passed: 2 of 3 tests: 1 passed, 1 skipped.",
        ),
        ({"built": frozenset({"1.0.0"})}, "dist/1.0.0 is there already"),
        ({"changelog": "# Changelog\n"}, "no entry for 1.0.0: write a line `- ...` below `## [Unreleased]`"),
        (
            {"changelog": "## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2030-01-01\n- Old.\n"},
            "no entry for 1.0.0",
        ),
        (
            {"changelog": "## [1.0.0] - 2031-02-02\n\n- New.\n"},
            f"change its heading to `## [1.0.0] - {TODAY}`",
        ),
        ({"changelog": "## [1.0.0]\n\n- New.\n"}, f"change its heading to `## [1.0.0] - {TODAY}`"),
        ({"changelog": f"## [1.0.0] - {TODAY}\n\n### Added\n"}, "says nothing about 1.0.0"),
    ],
)
def test_unready_checkout_is_refused_with_advice(different: dict[str, object], reason: str) -> None:
    (told,) = against("1.0.0", **different)
    assert reason in told


def test_run_that_goes_on_adds_to_the_record_of_its_commit_alone() -> None:
    def line(**words: str | int) -> str:
        return json.dumps(words)

    lines = [
        line(commit="a"), line(tests=3), line(id="one", outcome="passed"),
        line(commit="b"), line(tests=3), line(id="one", outcome="failed"), line(id="two", outcome="passed"),
        line(commit="b"), line(id="one", outcome="passed"), line(id="three", outcome="skipped"),
        '{"id": "thr',
    ]  # fmt: skip
    found = parsed(lines)
    assert found is not None
    assert (found.commit, found.is_green) == ("b", True)
    assert str(found) == "3 tests: 2 passed, 1 skipped (1 of them in a second run)"
    partial = parsed(lines[:-1][3:7])
    assert partial is not None
    assert not partial.is_green
    assert parsed([]) is None


def test_unreleased_becomes_the_entry_and_makes_room_for_the_next() -> None:
    assert changelog.released(READY.changelog, "0.11.0", TODAY) == (
        f"# Changelog\n\n## [Unreleased]\n\n## [0.11.0] - {TODAY}\n\n- New.\n\n"
        "## [0.10.0] - 2030-01-01\n\n- Old.\n"
    )

    written = f"## [Unreleased]\n\n## [0.11.0] - {TODAY}\n\n- New.\n"
    assert changelog.released(written, "0.11.0", TODAY) == written
    assert against("0.11.0", changelog=written) == []


# In place of release/artifacts.py, where it does not matter what is built.
QUICK = """
import os, pathlib, sys
{meanwhile}
pathlib.Path(sys.argv[-1]).mkdir()
pathlib.Path(sys.argv[-1], "SHA256SUMS").touch()
"""
PATIENCE_SECONDS = 300
# They may name any version: what was, and what never will be.
EXCUSED = ("CHANGELOG.md:", "tests/")
FILES = {
    "SHA256SUMS",
    "SHA256SUMS.sig",
    "bundle.yml",
    "jetson_k3s-cluster-0.2.0.tar.gz",
    "tegra-device-plugin-0.2.0.tgz",
    "tegra-device-plugin-amd64.spdx.json",
    "tegra-device-plugin-amd64.tar.gz",
    "tegra-device-plugin-arm64.spdx.json",
    "tegra-device-plugin-arm64.tar.gz",
    "tegra-device-plugin.oci.tar",
    "tegra_device_plugin-0.2.0-py3-none-any.whl",
}


@pytest.fixture
def dist(released: Checkout) -> Path:
    return released.path / "dist/0.2.0"


def content(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_release_has_every_artifact_and_sha256sum_finds_each_as_listed(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == FILES
    checked = run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist).stdout
    assert {line.removesuffix(": OK") for line in checked.splitlines()} == FILES - {
        "SHA256SUMS",
        "SHA256SUMS.sig",
    }


def verified(dist: Path, signers: Path) -> bool:
    """What the documents have users run."""
    verify = "ssh-keygen -Y verify -f {} -I jetson-k3s -n jetson-k3s-release -s SHA256SUMS.sig < SHA256SUMS"
    return run(["sh", "-c", verify.format(signers)], cwd=dist, check=False).returncode == 0


def test_signature_is_of_the_maintainers_key_and_of_these_sums(
    released: Checkout, dist: Path, tmp_path: Path
) -> None:
    signers, others = tmp_path / "signers", tmp_path / "others"
    signers.write_text(signature.allowed_signers(released.key))
    others.write_text(signature.allowed_signers(make_key(tmp_path / "other")))
    copy = Path(shutil.copytree(dist, tmp_path / "dist"))
    assert verified(copy, signers)
    assert not verified(copy, others)
    (copy / "SHA256SUMS").write_text((copy / "SHA256SUMS").read_text().replace("0", "1"))
    assert not verified(copy, signers)


def test_release_without_a_key_that_can_sign_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    inside = make_key(checkout.path / "dist-key")
    checkout.write(".gitignore", "dist-key*\n")
    locked = tmp_path / "locked"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "passphrase", "-f", locked])
    before = checkout.state()
    for key, words in (
        ([], "no key signs it: name yours, KEY=~/.ssh/jetson-k3s-release"),
        ([f"--key={inside}"], "is in the checkout: move the key"),
        ([f"--key={tmp_path}/none"], "cannot sign it"),
        ([f"--key={locked}"], f"run `ssh-add {locked}` first"),
    ):
        for check in ([], ["--check"]):
            code, said = checkout.release("0.2.0", *key, *check, signed=False)
            assert (code, words in said) == (1, True), said
    assert checkout.state() == before


def test_every_artifact_is_of_the_version(dist: Path) -> None:
    manifest = json.loads(content(dist / "jetson_k3s-cluster-0.2.0.tar.gz", "MANIFEST.json"))
    assert manifest["collection_info"]["version"] == "0.2.0"
    with zipfile.ZipFile(dist / "tegra_device_plugin-0.2.0-py3-none-any.whl") as wheel:
        assert "Version: 0.2.0\n" in wheel.read("tegra_device_plugin-0.2.0.dist-info/METADATA").decode()
        assert "tegra_device_plugin/board/catalogue.json" in wheel.namelist()
    assert manifest["collection_info"]["repository"] == "https://github.com/somebody/jetson-k3s"
    chart = yaml.safe_load(content(dist / "tegra-device-plugin-0.2.0.tgz", "tegra-device-plugin/Chart.yaml"))
    assert (chart["version"], chart["appVersion"]) == ("0.2.0", "0.2.0")
    for arch in ("arm64", "amd64"):
        (image,) = json.loads(content(dist / f"tegra-device-plugin-{arch}.tar.gz", "manifest.json"))
        assert image["RepoTags"] == ["tegra-device-plugin:0.2.0"]
    bundle = yaml.safe_load((dist / "bundle.yml").read_text())
    assert bundle == {"version": 1, "plugin_image": "tegra-device-plugin:0.2.0"}


def test_image_names_the_commit_of_the_release(released: Checkout, dist: Path, tmp_path: Path) -> None:
    (image,) = json.loads(content(dist / "tegra-device-plugin-arm64.tar.gz", "manifest.json"))
    layer = tmp_path / "layer.tar"
    layer.write_bytes(content(dist / "tegra-device-plugin-arm64.tar.gz", image["Layers"][0]))
    with tarfile.open(layer) as tar:
        assert tar.getnames() == [released.git("rev-parse", "v0.2.0^{commit}")]


def test_commit_sets_the_version_the_tags_and_the_changelog(released: Checkout) -> None:
    subject, _, tested = released.git("log", "-1", "--format=%B", "main").partition("\n\n")
    assert subject == "Release 0.2.0"
    before = released.git("rev-parse", "--short=12", "main~")
    assert tested.splitlines() == [
        f"Tests of {before}, the commit before this one:",
        *(f"{suite}: 1 tests: 1 passed" for suite in REQUIRED),
        "arm64: not run",
    ]
    assert released.git("diff", "--name-only", "main~", "main").splitlines() == [
        "CHANGELOG.md",
        "docs/device-plugin.md",
        "docs/dra.md",
        *sorted(
            str(path.relative_to(CHECKOUT))
            for path in (CHECKOUT / "docs/examples").glob("*.yaml")
            if "tegra-device-plugin:" in path.read_text()
        ),
        "docs/offline.md",
        "docs/troubleshooting.md",
        "galaxy.yml",
        "plugin/deploy/agent/daemonset.yaml",
        "plugin/deploy/base/daemonset.yaml",
        "plugin/deploy/chart/Chart.yaml",
        "plugin/deploy/dra/daemonset.yaml",
        "plugin/deploy/throttle-taint/daemonset.yaml",
        "plugin/deploy/verify/job.yaml",
        "plugin/tegra_device_plugin/version.py",
        "pyproject.toml",
        "tests/docs/cases.yml",
    ]
    before, after = (released.git("show", f"{ref}:pyproject.toml") for ref in ("main~", "main"))
    assert tomllib.loads(after)["project"]["version"] == "0.2.0"
    assert sum(old != new for old, new in zip(before.splitlines(), after.splitlines(), strict=True)) == 1
    heading = f"## [Unreleased]\n\n## [0.2.0] - {datetime.now(UTC).date()}\n"
    assert released.git("show", "main:CHANGELOG.md") == CHANGES.replace("## [Unreleased]\n", heading).rstrip()


def test_tag_is_annotated_with_the_changes_and_is_on_main(released: Checkout) -> None:
    assert released.git("cat-file", "-t", "v0.2.0") == "tag"
    notes = released.git("tag", "--list", "--format=%(contents)", "v0.2.0").strip()
    assert notes == "Release 0.2.0\n\n### Added\n\n- One thing."
    assert released.git("rev-parse", "v0.2.0^{commit}") == released.git("rev-parse", "main")


def test_release_leaves_a_clean_checkout_and_pushes_nothing(released: Checkout) -> None:
    state = released.state()
    assert state["branch"] == "main"
    assert state["changes"] == ""
    assert state["worktrees"] == 1
    assert state["hidden"] == []
    assert released.git("ls-remote", "origin").split() == [
        released.git("rev-parse", "main~"),
        "refs/heads/main",
    ]


def test_another_build_of_the_tag_gives_the_same_bytes(
    released: Checkout, dist: Path, tmp_path: Path
) -> None:
    again = tmp_path / "elsewhere"
    released.git("clone", "--quiet", "--branch=v0.2.0", released.path, again)
    builds = [sys.executable, "-m", "release.artifacts", f"--output={tmp_path}/dist"]
    subprocess.run(builds, cwd=again, env=ENVIRONMENT, check=True, umask=0o077, capture_output=True)
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()


def test_version_that_is_written_but_was_never_released_can_be(checkout: Checkout) -> None:
    checkout.write("release/artifacts.py", QUICK.format(meanwhile="pass"))
    code, said = checkout.release(version.current())
    assert code == 0, said
    assert checkout.git("diff", "--name-only", "main~", "main") == "CHANGELOG.md"
    assert f"git push --atomic origin main v{version.current()}" in said


def test_check_shows_the_changes_only(checkout: Checkout) -> None:
    before = checkout.state()
    code, said = checkout.release("0.2.0", "--check")
    assert code == 0, said
    for line in ('+version = "0.2.0"', "+          image: tegra-device-plugin:0.2.0", "+## [0.2.0] - "):
        assert line in said
    assert "0.2.0 can be released; the last release is none." in said
    assert checkout.state() == before


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "images/arm64/build.py",
            DURING_BUILD,
            f"    raise ToolError('broken')\n{DURING_BUILD}",
            "error: broken",
        ),
        ("galaxy.yml", "namespace: ", "broken: ", "mandatory keys: namespace"),
    ],
)
def test_failed_build_changes_nothing(
    checkout: Checkout, name: str, old: str, new: str, message: str
) -> None:
    checkout.replace(name, old, new)
    before = checkout.state()
    code, said = checkout.release("0.2.0")
    assert code == 1
    assert message in said
    assert said.endswith("Nothing has been changed.\n")
    assert checkout.state() == before


@pytest.mark.parametrize(
    ("meanwhile", "message", "kept"),
    [
        ("git commit --quiet --allow-empty --message=Mine", "fast-forward", "git log -1 --format=%s main"),
        ("git switch --quiet --create Mine", "went from main to Mine", "git branch --show-current"),
        ("echo '# Mine' > pyproject.toml", "would be overwritten by merge", "tail -1 pyproject.toml"),
    ],
)
def test_work_during_the_build_is_kept(checkout: Checkout, meanwhile: str, message: str, kept: str) -> None:
    work = f"os.system({f'cd {checkout.path}; {meanwhile}'!r})"
    checkout.write("release/artifacts.py", QUICK.format(meanwhile=work))
    before = checkout.state()
    code, said = checkout.release("0.2.0")
    assert code == 1
    assert message in said
    assert "Mine" in run(kept.split(), cwd=checkout.path).stdout
    after = checkout.state()
    unreleased = ("tags", "worktrees", "dist", "hidden")
    assert [after[key] for key in unreleased] == [before[key] for key in unreleased]
    assert "Release" not in checkout.git("log", "--format=%s", "main")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_changes_nothing(checkout: Checkout, tmp_path: Path, how: signal.Signals) -> None:
    building = tmp_path / "building"
    os.mkfifo(building)
    sleeper = f"    run(['sh', '-c', 'exec > {building}; echo; exec sleep infinity'])\n"
    checkout.replace("images/arm64/build.py", DURING_BUILD, f"{sleeper}{DURING_BUILD}")
    before = checkout.state()
    fifo = os.open(building, os.O_RDONLY | os.O_NONBLOCK)
    process = checkout.start("0.2.0", f"--key={checkout.key}")
    select.select([fifo], [], [], PATIENCE_SECONDS)
    assert os.read(fifo, 1) == b"\n"
    process.send_signal(how)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, said.endswith("stopped. Nothing has been changed.\n")) == (130, True), said
    assert os.read(fifo, 1) == b""  # nobody has its other end
    os.close(fifo)
    assert checkout.state() == before


def test_make_release_is_the_front_door(checkout: Checkout) -> None:
    # The environment is the one that runs this test.
    make = ["make", "--no-print-directory", "--old-file=.venv/.dev", f"PYTHON={sys.executable}", "release"]
    checked = run(
        [*make, "VERSION=0.2.0", f"KEY={checkout.key}", "CHECK=1"], cwd=checkout.path, env=ENVIRONMENT
    )
    assert "0.2.0 can be released" in checked.stdout
    nameless = run(make, cwd=checkout.path, env=ENVIRONMENT, check=False)
    assert nameless.returncode != 0
    assert "VERSION= is not a release: write three numbers" in nameless.stderr


def test_failure_after_the_build_changes_nothing(checkout: Checkout) -> None:
    checkout.write("release/artifacts.py", QUICK.format(meanwhile="pass"))
    checkout.git("config", "gpg.program", "false")
    hook = checkout.path / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho refused; exit 1\n")
    hook.chmod(0o755)
    before = checkout.state()
    # The commit is refused, and then the tag.
    for words in ("refused", "gpg"):
        code, said = checkout.release("0.2.0")
        assert (code, words in said) == (1, True)
        assert checkout.state() == before
        hook.unlink(missing_ok=True)
        checkout.git("config", "tag.gpgSign", "true")


def test_chart_and_image_have_the_version_wherever_it_has_a_tag() -> None:
    chart = yaml.safe_load((CHECKOUT / version.CHART).read_text())
    assert (chart["version"], chart["appVersion"]) == (version.current(), version.current())
    assert version.current() == VERSION
    tracked = run(["git", "-C", CHECKOUT, "grep", "-I", "--perl-regexp", version.NAMED.pattern]).stdout
    named = {line: version.NAMED.findall(line) for line in tracked.splitlines()}
    assert [
        line
        for line, found in named.items()
        if {number for _, number in found} != {version.current()} and not line.startswith(EXCUSED)
    ] == []
    followers = {path for pattern in version.FOLLOWERS for path in CHECKOUT.glob(pattern)}
    found = {
        CHECKOUT / line.partition(":")[0] for line in tracked.splitlines() if not line.startswith(EXCUSED)
    }
    assert found
    assert found <= followers
