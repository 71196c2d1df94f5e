# SPDX-License-Identifier: Apache-2.0
"""Documents made from data, so that they cannot say anything else: `python -m tests.docs` writes them."""

from pathlib import Path

from tests.docs import compatibility, variables

CHECKOUT = Path(__file__).parents[2]


def documents() -> dict[Path, str]:
    """Every document that is made from data, and what must stand in it."""
    roles = CHECKOUT / "roles"
    texts = {CHECKOUT / "docs/compatibility.md": compatibility.render(roles)}
    for specs in sorted(roles.glob("*/meta/argument_specs.yml")):
        role = specs.parents[1]
        readme = role / "README.md"
        text = readme.read_text() if readme.exists() else f"# {role.name}\n"
        texts[readme] = variables.put_in(text, variables.render(role))
    return texts
