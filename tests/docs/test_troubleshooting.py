# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md has an entry for every finding and every check, and for no other."""

import ast

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight

from tests.docs import CHECKOUT, markdown
from tests.docs.markdown import anchor
from tests.unit.roles.preflight_facts import RULES
from tools.docs import requirements

PAGE = "docs/troubleshooting.md"
PREFLIGHT, VERIFICATION = "What preflight finds", "What verification finds"
PLUGINS = CHECKOUT / "plugins"
CHECKS = yaml.safe_load((CHECKOUT / "roles/gpu_verify/vars/main.yml").read_text())["__gpu_verify_checks"]
# Of findings that are code, the value of the key `id` is a constant, or a condition between constants.
CODED = {
    part.value
    for pattern in ("preflight_*.py", "image_fit.py", "user_images.py")
    for path in PLUGINS.glob(f"*/{pattern}")
    if path.stem not in ("preflight_rules", "preflight_docker")  # the findings of rules that are data
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Dict)
    for key, value in zip(node.keys, node.values, strict=True)
    if isinstance(key, ast.Constant) and key.value == "id"
    for part in ast.walk(value)
    if isinstance(part, ast.Constant) and isinstance(part.value, str)
}
FINDINGS = sorted({"accepted-unknown"} | CODED | preflight.WARNINGS | {rule["id"] for rule in RULES})


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
    assert preflight.guide(finding) == page(f"{PAGE}#{anchor(finding)}")


def test_the_page_of_compatibility_has_the_requirements_of_the_rules() -> None:
    page = requirements.PAGE.read_text()
    assert page == requirements.written(page), "python -m tools.docs.requirements"
