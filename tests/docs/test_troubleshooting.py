# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md has an entry for every finding and every check, and for no other."""

import runpy

import pytest
import yaml

from tests.docs import CHECKOUT, markdown

PAGE = "docs/troubleshooting.md"
FINDINGS, CHECKS = "What preflight finds", "What verification finds"
PREFLIGHT = CHECKOUT / "roles/preflight"
CODE = runpy.run_path(str(PREFLIGHT / "filter_plugins/preflight.py"))
VERIFICATION = yaml.safe_load((CHECKOUT / "roles/gpu_verify/vars/main.yml").read_text())[
    "__gpu_verify_checks"
]


def finding_ids() -> set[str]:
    data = {
        name: yaml.safe_load((PREFLIGHT / f"vars/main/{name}.yml").read_text())
        for name in ("compatibility", "kernel")
    }
    rules = data["compatibility"]["__preflight_rules"]
    kernel = CODE["rules_of_kernel"](data["kernel"]["__preflight_kernel"])
    return {str(entry["id"]) for entry in [*rules, *kernel]} | set(map(str, CODE["CODED"]))


def entries(chapter: str) -> dict[str, markdown.Section]:
    sections = iter(markdown.read(CHECKOUT / PAGE).sections)
    for section in sections:
        if (section.level, section.title) == (2, chapter):
            break
    found = {}
    for section in sections:
        if section.level <= 2:
            break
        found[section.title] = section
    return found


def test_every_finding_of_preflight_has_an_entry_and_no_other() -> None:
    assert entries(FINDINGS).keys() == finding_ids()


def test_every_check_of_verification_has_an_entry_and_no_other() -> None:
    anchors = {title: entry.anchor for title, entry in entries(CHECKS).items()}
    assert anchors == {check["id"]: check["id"] for check in VERIFICATION}


@pytest.mark.parametrize("chapter", [FINDINGS, CHECKS])
def test_every_entry_says_symptom_cause_and_fix(chapter: str) -> None:
    words = ("**Symptom:**", "**Cause:**", "**Fix:**")
    lacking = [
        title for title, entry in entries(chapter).items() if any(word not in entry.text for word in words)
    ]
    assert lacking == []


@pytest.mark.parametrize("finding", sorted(finding_ids()))
def test_finding_leads_to_its_entry(finding: str) -> None:
    assert CODE["guide"](finding) == f"{PAGE}#{entries(FINDINGS)[finding].anchor}"
