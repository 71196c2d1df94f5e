# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md has an entry for every finding and every check, and for no other."""

import runpy

import pytest
import yaml

from tests.docs import CHECKOUT, markdown
from tools.docs.findings import findings
from tools.docs.markdown import anchor

PAGE = "docs/troubleshooting.md"
PREFLIGHT, VERIFICATION = "What preflight finds", "What verification finds"
FINDINGS = findings(CHECKOUT / "roles")
GUIDE = runpy.run_path(str(CHECKOUT / "roles/preflight/filter_plugins/preflight.py"))["guide"]
CHECKS = yaml.safe_load((CHECKOUT / "roles/gpu_verify/vars/main.yml").read_text())["__gpu_verify_checks"]


def entries(chapter: str) -> list[markdown.Section]:
    sections = iter(markdown.read(CHECKOUT / PAGE).sections)
    for section in sections:
        if (section.level, section.title) == (2, chapter):
            break
    found = []
    for section in sections:
        if section.level <= 2:
            break
        found.append(section)
    return found


def test_every_finding_of_preflight_has_an_entry_and_no_other() -> None:
    own = [section.anchor for section in entries(PREFLIGHT) if section.title in FINDINGS]
    shared = [name for section in entries(PREFLIGHT) for name in markdown.NAMED.findall(section.text)]
    assert sorted(own + shared) == sorted(map(anchor, FINDINGS))


def test_every_check_of_verification_has_an_entry_and_no_other() -> None:
    assert [section.anchor for section in entries(VERIFICATION)] == [check["id"] for check in CHECKS]


@pytest.mark.parametrize("chapter", [PREFLIGHT, VERIFICATION])
def test_every_entry_says_symptom_and_fix(chapter: str) -> None:
    words = ("**Symptom:**", "**Fix:**")
    assert [entry.title for entry in entries(chapter) if any(word not in entry.text for word in words)] == []


@pytest.mark.parametrize("finding", FINDINGS)
def test_finding_leads_to_its_entry(finding: str) -> None:
    assert GUIDE(finding) == f"{PAGE}#{anchor(finding)}"
