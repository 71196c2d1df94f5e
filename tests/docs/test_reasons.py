# SPDX-License-Identifier: Apache-2.0
"""docs/device-plugin.md has every reason that the plugin can give for the GPU's health, and no other."""

import ast
import re

from tests.docs import CHECKOUT, markdown

REASON = re.compile(r"[a-z]+(-[a-z]+)*")


def told() -> set[str]:
    """The reasons in the page's list: each begins an item, in bold."""
    (chapter,) = (
        section
        for section in markdown.read(CHECKOUT / "docs/device-plugin.md").sections
        if section.title == "Health"
    )
    return set(re.findall(r"^\* \*\*`([^`]+)`\*\*", chapter.text, re.MULTILINE))


def given() -> set[str]:
    """The reasons in the code: matching arguments of Health and unhealthy."""
    trees = [ast.parse(path.read_text()) for path in (CHECKOUT / "plugin/tegra_device_plugin").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("Health", "unhealthy")
        for argument in call.args
        if isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and REASON.fullmatch(argument.value)
    }


def test_every_reason_of_the_gpus_health_is_in_the_handbook_and_no_other() -> None:
    assert told() == given()
