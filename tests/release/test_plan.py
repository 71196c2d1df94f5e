# SPDX-License-Identifier: Apache-2.0
"""What can be released, and what it makes of the changelog."""

import dataclasses

import pytest

from release import changelog, plan

TODAY = "2031-02-03"
READY = plan.State(
    branch="main",
    uncommitted=(),
    tags=frozenset({"v0.9.1", "v0.10.0", "vendor", "v1.0.0-rc.1", "3.0.0"}),
    built=frozenset({"0.9.1", "tegra-device-plugin.oci.tar"}),
    changelog="# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.10.0] - 2030-01-01\n\n- Old.\n",
    unsigned="",
)


def against(wanted: str, **different: object) -> list[str]:
    """Return the reasons against a release from a checkout that differs from one that is ready."""
    return plan.refusals(wanted, dataclasses.replace(READY, **different), TODAY)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["0.10.1", "0.11.0", "1.0.0", "10.0.0"])
def test_newer_release_of_a_ready_checkout_has_nothing_against_it(wanted: str) -> None:
    assert against(wanted) == []


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        "1.0",
        "v1.0.0",
        "01.0.0",
        "1.0.0-rc.1",
        "1.0.0\n",
        "1.0.٣",
    ],
)
def test_what_is_no_release_is_refused(wanted: str) -> None:
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
        ({"unsigned": "no key signs it: name yours"}, "no key signs it: name yours"),
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
def test_checkout_that_is_not_ready_is_refused_with_what_to_do(
    different: dict[str, object], reason: str
) -> None:
    (told,) = against("1.0.0", **different)
    assert reason in told


def test_unreleased_becomes_the_entry_and_makes_room_for_the_next() -> None:
    assert changelog.released(READY.changelog, "0.11.0", TODAY) == (
        f"# Changelog\n\n## [Unreleased]\n\n## [0.11.0] - {TODAY}\n\n- New.\n\n"
        "## [0.10.0] - 2030-01-01\n\n- Old.\n"
    )


def test_entry_of_today_stays_as_it_is() -> None:
    written = f"## [Unreleased]\n\n## [0.11.0] - {TODAY}\n\n- New.\n"
    assert changelog.released(written, "0.11.0", TODAY) == written
    assert against("0.11.0", changelog=written) == []
