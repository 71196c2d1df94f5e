# SPDX-License-Identifier: Apache-2.0
"""Whether a version can be released from a checkout, and what that changes. Changes nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from release import changelog, identity, version
from release.changelog import ChangelogError
from tools.suites import Ran

BRANCH = "main"
REQUIRED = {"unit": "make test", "lab": "make test", "acceptance": "make acceptance"}
"""Suites that have to pass on the commit that is released, and the commands that run them."""


@dataclass(frozen=True)
class State:
    """The state of a checkout.

    `branch` is empty when none is checked out, `commit` is the id of its last commit, `uncommitted` has the
    lines of `git status --porcelain`, `owner` is the account that owns the project, `tags` are all of git's
    tags, `built` are the names in dist/, `unsigned` says why no key can sign, `ran` has the last run of each
    suite of tests.
    """

    branch: str
    commit: str
    uncommitted: tuple[str, ...]
    owner: str
    tags: frozenset[str]
    built: frozenset[str]
    changelog: str
    unsigned: str
    ran: Mapping[str, Ran | None]


def tag(wanted: str) -> str:
    """Return the name of a version's tag."""
    return f"v{wanted}"


def last_release(wanted: str, state: State) -> str | None:
    """Return the newest release that a tag or the changelog knows, the wanted one's own entry left out."""
    tagged = {name.removeprefix("v") for name in state.tags if name.startswith("v")}
    known = tagged | (changelog.entries(state.changelog).keys() - {wanted})
    releases = {numbers: name for name in known if (numbers := version.numbers(name))}
    return releases[max(releases)] if releases else None


def refusals(wanted: str, state: State, today: str) -> list[str]:
    """Return every reason against the release, each with what to do; empty when it can be made."""
    numbers = version.numbers(wanted)
    if numbers is None:
        return [
            f"VERSION={wanted} is not a release: write three numbers without leading zeros, "
            "such as VERSION=0.2.0"
        ]
    found = []
    last = last_release(wanted, state)
    if last and numbers <= (version.numbers(last) or ()):
        found.append(f"VERSION={wanted} is not newer than {last}, the last release: choose a higher one")
    if state.branch != BRANCH:
        found.append(
            f"releases are made on {BRANCH}, this is {state.branch or 'no branch'}: git switch {BRANCH}"
        )
    if state.uncommitted:
        files = "".join(f"\n      {line}" for line in state.uncommitted)
        found.append(f"there are changes that are not committed: commit or stash them{files}")
    if state.owner == identity.PLACEHOLDER:
        found.append(
            "nobody owns the project, so its links lead nowhere: make identity OWNER=ACCOUNT, and commit it"
        )
    if wanted in state.built:
        found.append(f"dist/{wanted} is there already: move it away or remove it")
    if state.unsigned:
        found.append(state.unsigned)
    found += untested(state)
    try:
        changelog.released(state.changelog, wanted, today)
    except ChangelogError as error:
        found.append(str(error))
    return found


def untested(state: State) -> list[str]:
    """Return why tests of the commit do not suffice, each with the command to type."""
    found = []
    for suite, command in REQUIRED.items():
        ran = state.ran.get(suite)
        if ran is None or ran.commit != state.commit:
            on = f"ran last on {ran.commit[:8]}" if ran else "has no record"
            found.append(f"the suite {suite} {on}, this is {state.commit[:8]}: {command}")
        elif not ran.is_green:
            found.append(f"the suite {suite} has not passed: {ran}. Mend it, then: {command}")
    return found


def tested(state: State) -> str:
    """Return a line for each suite, for the message of the release's commit."""
    lines = [f"Tests of {state.commit[:12]}, the commit before this one:"]
    for suite, ran in state.ran.items():
        lines.append(f"{suite}: {ran if ran and ran.commit == state.commit else 'not run'}")
    return "\n".join(lines)


def changes(wanted: str, tree: Path, today: str) -> dict[Path, str]:
    """Return the texts that files of a checkout get in the release's commit, by path."""
    path = tree / changelog.FILE
    before = path.read_text()
    after = changelog.released(before, wanted, today)
    return version.set_to(wanted, tree) | ({path: after} if after != before else {})
