# SPDX-License-Identifier: Apache-2.0
"""The nightly tests: each test file is in one shard, and the page says what ran and what has no result."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_junit

from tests.docs import CHECKOUT, markdown
from tests.reports import samples
from tools import nightly
from tools.nightly import DEFAULT_K3S, Failure, Result
from tools.process import ToolError, run
from tools.suites import SUITES

FILE = CHECKOUT / ".github/workflows/nightly.yml"
WORKFLOW = yaml.safe_load(FILE.read_text())
EXPRESSION = re.compile(r"\$\{\{ ([\w.]+) }}")
TESTS = """\
import pytest

def test_passes(): pass
def test_fails(): assert "<b>" == "</b>", "one <b> too many"
def test_is_skipped(): pytest.skip("no Go & no module proxy")
@pytest.fixture
def broken(): raise OSError("no disk")
def test_has_no_fixture(broken): pass
"""
ABOUT = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "date": datetime(2026, 11, 29, 1, 2, tzinfo=UTC),
    "repository": "https://github.com/owner/project",
    "run": "https://github.com/owner/project/actions/runs/7",
}


def shards_of(file: str) -> list[str]:
    """The shards that have a test file, by its own name or that of a directory."""
    parents = {file, *(str(parent) for parent in Path(file).parents)}
    return [name for name, entry in nightly.shards().items() for path in entry["tests"] if path in parents]


def test_each_test_file_is_in_exactly_one_shard() -> None:
    files = [str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests").rglob("test_*.py")]
    assert len([file for file in files if file.startswith("tests/acceptance/")]) > 20
    assert {file: found for file in files if len(found := shards_of(file)) != 1} == {}


def test_each_shard_has_tests_and_a_suite_that_exist() -> None:
    for entry in nightly.shards().values():
        assert entry["suite"] in SUITES
        assert entry["tests"]
        assert all((CHECKOUT / path).exists() for path in entry["tests"])


def test_story_of_a_file_is_in_the_suite_of_its_shard() -> None:
    """A marker of a complete file has to be that of its shard: otherwise pytest would select nothing."""
    for path in (CHECKOUT / "tests/acceptance").glob("test_*.py"):
        (shard,) = shards_of(str(path.relative_to(CHECKOUT)))
        assert re.search(rf"\bmark\.{nightly.shards()[shard]['suite']}\b", path.read_text()), path


def junit(directory: Path, shard: str, tests: str = TESTS) -> None:
    """Have the results of a shard where `gh run download` leaves them."""
    file = directory / f"junit-{shard}" / "junit.xml"
    file.parent.mkdir(parents=True)
    test = directory / "test_it.py"
    test.write_text(tests)
    alone = ("-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={directory}", "--config-file=/dev/null")
    run([sys.executable, "-m", "pytest", *alone, f"--junit-xml={file}", test], cwd=directory, check=False)
    test.unlink()


def test_outcomes_are_those_of_pytest(tmp_path: Path) -> None:
    junit(tmp_path, "fleet")
    found = nightly.result("fleet", tmp_path / "junit-fleet/junit.xml")
    assert (found.arrived, found.passed, found.skipped) == (True, 1, {"no Go & no module proxy": 1})
    assert [failure.test for failure in found.failures] == [
        "test_it::test_fails",
        "test_it::test_has_no_fixture",
    ]
    assert "one <b> too many" in found.failures[0].message
    assert found.seconds > 0
    assert not found.is_green


@pytest.mark.parametrize(
    ("reports", "passed", "failed"),
    [({"jetson-1": samples.passed}, 8, 0), ({"jetson-1": samples.failed}, 4, 1), ({"jetson-1": None}, 0, 1)],
)
def test_report_of_site_yml_is_a_result(
    tmp_path: Path, reports: dict[str, Callable[[str], Any] | None], passed: int, failed: int
) -> None:
    made = samples.fleet(**{name: of and of(name) for name, of in reports.items()})
    (tmp_path / "junit.xml").write_text(report_junit.junit(made))
    found = nightly.result(DEFAULT_K3S, tmp_path / "junit.xml")
    assert (found.arrived, len(found.failures)) == (True, failed)
    assert found.passed == passed


@pytest.mark.parametrize("text", [None, "", "<testsuites>"])
def test_shard_whose_file_is_missing_or_damaged_has_no_result(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "junit.xml").write_text(text)
    found = nightly.result("fleet", tmp_path / "junit.xml")
    assert not found.arrived
    assert not found.is_green
    assert "no result" in nightly.page([found], **ABOUT)  # type: ignore[arg-type]


def test_each_shard_is_on_the_page_even_if_nothing_arrived(tmp_path: Path) -> None:
    text = nightly.page(nightly.results(tmp_path), **ABOUT)  # type: ignore[arg-type]
    assert text.count(">no result<") == len(nightly.names())
    assert all(f"<td>{name}</td>" in text for name in [*nightly.shards(), DEFAULT_K3S])


def test_shard_in_which_nothing_ran_is_not_green() -> None:
    empty = Result("fleet", arrived=True)
    empty.skipped["no Go"] = 3
    assert not empty.is_green
    assert "nothing ran" in nightly.page([empty], **ABOUT)  # type: ignore[arg-type]


def test_page_has_commit_date_numbers_and_no_markup_of_a_test() -> None:
    green = Result("claims", arrived=True, passed=1200, seconds=4000)
    red = Result("fleet", arrived=True, passed=1, seconds=65, failures=[Failure("a::b[<i>]", "<script>")])
    red.skipped["no <Go>"] = 2
    text = nightly.page([green, red], **ABOUT)  # type: ignore[arg-type]
    assert "<title>Nightly tests: 1 of 2 shards passed</title>" in text
    assert "2026-11-29 01:02 UTC" in text
    assert f'{ABOUT["repository"]}/commit/{ABOUT["commit"]}"><code>0123456789ab</code>' in text
    assert str(ABOUT["run"]) in text
    assert "SIMULATED" in text
    numbers = re.findall(r'<td class="number">([^<]*)</td>', text)
    assert numbers == ["1,200", "0", "0", "1 h 07 min", "1", "2", "1", "1 min"]
    assert "a::b[&lt;i&gt;]" in text
    assert "&lt;script&gt;" in text
    assert "fleet: no &lt;Go&gt; (2)" in text
    assert "<script" not in text


def test_workflow_runs_every_shard_by_the_target_of_make() -> None:
    job = WORKFLOW["jobs"]["shard"]
    assert job["strategy"]["matrix"]["shard"] == "${{ fromJSON(needs.plan.outputs.shards) }}"
    assert not job["strategy"]["fail-fast"]
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    dry = run(["make", "--dry-run", "nightly", "SHARD=claims", "JUNIT=junit.xml"], cwd=CHECKOUT).stdout
    assert 'make nightly SHARD="$SHARD" JUNIT=junit.xml' in commands
    assert '--junit-xml="junit.xml" $(.venv/bin/python -m tools.nightly arguments "claims")' in dry
    assert nightly.arguments("claims") == ["--suite=acceptance", "tests/acceptance/test_dra.py"]


def test_default_k3s_of_the_roles_is_the_one_that_is_tried() -> None:
    (step,) = [step for step in WORKFLOW["jobs"]["shard"]["steps"] if "LAB_K3S" in step.get("run", "")]
    defaults = yaml.safe_load((CHECKOUT / "roles/bundle/defaults/main.yml").read_text())
    echo = step["run"].replace("make demo", "echo")
    assert run(["bash", "-ec", echo], cwd=CHECKOUT).stdout.strip() == (
        f"LAB_K3S={defaults['__bundle_k3s_newest']}"
    )


class GitHub:
    """A repository on a disk, and a runner that runs the job `publish` for a commit of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.repository = home / "owner/project"
        run(["git", "init", "--quiet", "--bare", self.repository])
        self.results = home / "artifacts"
        self.results.mkdir()
        tools = home / "bin"
        tools.mkdir()
        gh = tools / "gh"
        gh.write_text(
            "#!/bin/sh\n"
            f'[ "$1 $2 $3" = "run download 7" ] && [ -n "$GH_TOKEN" ] && cp -r {self.results} "$9"\n'
        )
        gh.chmod(0o755)

    def publish(self, commit: str = str(ABOUT["commit"])) -> None:
        """Run the steps of the job as a runner does. Raises ToolError by the first that fails."""
        job = WORKFLOW["jobs"]["publish"]
        checkout = self.home / f"checkout-{commit}"
        for name in ("tools", "tests/shards.json"):
            copy = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copy
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            copy(CHECKOUT / name, checkout / name)
        environment = {name: EXPRESSION.sub("hunter2", text) for name, text in job["env"].items()}
        for step in job["steps"]:
            if "run" in step:
                run(
                    ["bash", "-e", "-c", step["run"]],
                    cwd=checkout,
                    env={
                        "PATH": f"{self.home}/bin:{os.environ['PATH']}",
                        "HOME": str(self.home),
                        "GITHUB_REPOSITORY": "owner/project",
                        "GITHUB_SERVER_URL": f"file://{self.home}",
                        "GITHUB_RUN_ID": "7",
                        "GITHUB_SHA": commit,
                        **environment,
                    },
                )

    def git(self, *arguments: str) -> str:
        return run(["git", "-C", self.repository, *arguments]).stdout


def test_page_is_published_and_the_page_of_the_night_before_is_its_parent(tmp_path: Path) -> None:
    github = GitHub(tmp_path)
    junit(github.results, "fleet")
    github.publish()
    github.publish("f" * 40)
    assert "fffffffff" in github.git("show", "gh-pages:index.html")
    assert github.git("log", "--format=%s", "gh-pages").splitlines() == [
        f"Nightly tests of {'f' * 40}",
        f"Nightly tests of {ABOUT['commit']}",
    ]
    assert github.git("ls-tree", "--name-only", "gh-pages").split() == [".nojekyll", "index.html"]
    assert "one &lt;b&gt; too many" in github.git("show", "gh-pages:index.html")


def test_page_is_published_if_no_shard_has_left_a_result(tmp_path: Path) -> None:
    github = GitHub(tmp_path)
    github.results.rmdir()
    github.publish()
    assert f"0 of {len(nightly.names())} shards passed" in github.git("show", "gh-pages:index.html")


def test_page_that_cannot_be_pushed_fails_the_job(tmp_path: Path) -> None:
    github = GitHub(tmp_path)
    shutil.rmtree(github.repository)
    with pytest.raises(ToolError):
        github.publish()


def test_only_the_job_that_publishes_may_write_to_the_repository() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name for name, job in WORKFLOW["jobs"].items() if "permissions" in job} == {"publish"}
    assert WORKFLOW["jobs"]["publish"]["permissions"] == {"actions": "read", "contents": "write"}


def test_readme_links_the_page_of_the_projects_address() -> None:
    address = yaml.safe_load((CHECKOUT / "galaxy.yml").read_text())["repository"]
    owner, name = address.removeprefix("https://github.com/").split("/")
    assert f"https://{owner}.github.io/{name}/" in markdown.read(CHECKOUT / "README.md").links
