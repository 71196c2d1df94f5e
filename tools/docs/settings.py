# SPDX-License-Identifier: Apache-2.0
"""Copy the description of every setting to the places that show it: `python -m tools.docs.settings`.

A setting is a variable without a leading underscore. The role whose name it begins with describes it in its
argument_specs, role preflight those of several roles (`jetson_`). This program copies the description to each
other role that reads the setting, so that `ansible-doc -t role` is complete, and to docs/settings.md.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml
from jinja2 import nodes

from tools.cache import CHECKOUT

ROLES = CHECKOUT / "roles"
PAGE = CHECKOUT / "docs/settings.md"
BEGIN = "<!-- settings, written by `python -m tools.docs.settings` -->"
END = "<!-- end -->"
# An entry point without tasks: Ansible validates the options of an entry point when it runs, and would then
# evaluate defaults of other roles that are not known yet.
ENTRY = "settings_of_other_roles"
COPIED = f"""\
  # Copied by `python -m tools.docs.settings`.
  {ENTRY}:
    short_description: Nothing to run. Settings of other roles that this role reads
    options:
"""
SHARED = "jetson_"
WIDTH = 118
KEY = re.compile(r" *(- )?\w+: ")
# Keys of a task whose text is an expression without braces.
EXPRESSIONS = {"when", "that", "until", "failed_when", "changed_when"}
MARKUP = re.compile(r"\b[CFIOV]\(([^)]*)\)")

Options = dict[str, dict[str, Any]]


class Indented(yaml.SafeDumper):
    """Indents lists as the files written by hand do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Never without indentation."""
        super().increase_indent(flow, False)


def specs(role: str) -> dict[str, Any]:
    """The entry points of a role, with their options."""
    text = (ROLES / role / "meta/argument_specs.yml").read_text()
    found: dict[str, Any] = yaml.safe_load(without_copies(text))["argument_specs"]
    return found


def without_copies(text: str) -> str:
    """An argument_specs.yml as it is written by hand."""
    return text.partition(COPIED)[0]


def roles() -> list[str]:
    """The roles, by name."""
    return sorted(path.parents[1].name for path in ROLES.glob("*/meta/argument_specs.yml"))


def described(role: str) -> Options:
    """The settings that a role describes itself, each by its first entry point, which is `main` as a rule."""
    options: Options = {}
    for entry in specs(role).values():
        own = {name: one for name, one in entry["options"].items() if not name.startswith("_")}
        options = own | options
    return options


@cache
def settings() -> dict[str, tuple[str, dict[str, Any]]]:
    """{setting: (the role that describes it, its description)}."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for role in roles():
        for name, option in described(role).items():
            if name in found and found[name][0] != role:
                raise ValueError(f"{name} is described by the roles {found[name][0]} and {role}")
            found[name] = (role, option)
    return found


def names_in(expression: str, *, template: bool) -> set[str]:
    """Names that an expression may read: variables, attributes, and texts that are a name."""
    text = expression if template else f"{{{{ {expression} }}}}"
    try:
        tree = jinja2.Environment(autoescape=True).parse(text)
    except jinja2.TemplateSyntaxError:  # a text with braces that is no template
        return set()
    found = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
    found |= {node.attr for node in tree.find_all(nodes.Getattr)}
    return found | {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}


def texts(value: Any, *, expression: bool = False) -> Iterator[tuple[str, bool]]:
    """Each text in the data of a YAML file, and whether it is an expression without braces."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from texts(one, expression=key in EXPRESSIONS)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, expression=expression)
    elif isinstance(value, str):
        yield value, expression


def read_by(role: str) -> set[str]:
    """The settings that tasks, variables and templates of a role read."""
    found: set[str] = set()
    for part in ("defaults", "handlers", "tasks", "vars"):
        for path in (ROLES / role / part).rglob("*.yml"):
            for text, expression in texts(yaml.safe_load(path.read_text())):
                if expression or "{{" in text:
                    found |= names_in(text, template=not expression)
                else:
                    found.add(text)  # a list of names
    for path in (ROLES / role / "templates").rglob("*.j2"):
        found |= names_in(path.read_text(), template=True)
    return found & settings().keys()


def copies(role: str) -> Options:
    """The settings of other roles that a role reads, as these describe them."""
    others = sorted(read_by(role) - described(role).keys())
    return {name: settings()[name][1] for name in others}


def with_copies(role: str) -> str:
    """A role's argument_specs.yml, with the settings of other roles at its end."""
    text = without_copies((ROLES / role / "meta/argument_specs.yml").read_text())
    options = copies(role)
    if not options:
        return text
    # PyYAML breaks a line at the first space beyond the width.
    dumped = yaml.dump(options, Dumper=Indented, sort_keys=False, width=92, allow_unicode=True)
    lines = textwrap.indent(dumped, " " * 6).splitlines()
    return text + COPIED + "\n".join(part for line in lines for part in folded(line)) + "\n"


def folded(line: str) -> list[str]:
    """A line of a YAML text that may be continued: a long one in several lines."""
    indent = len(line) - len(line.lstrip()) + (2 if KEY.match(line) else 0)
    return textwrap.wrap(
        line, 120, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def default_of(role: str, name: str) -> str:
    """The default of a setting as a reader sees it, '' if it has none or one that depends on others."""
    path = ROLES / role / "defaults/main.yml"
    defaults = yaml.safe_load(path.read_text()) or {} if path.exists() else {}
    value = defaults.get(name)
    if value is None or (isinstance(value, str) and "{{" in value):
        return ""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def item(name: str, role: str, option: dict[str, Any]) -> str:
    """A setting as an item of a list."""
    default = default_of(role, name)
    text = MARKUP.sub(r"`\1`", " ".join(str(option["description"]).split()))
    if "choices" in option:
        text += f" Values: {', '.join(f'`{one}`' for one in option['choices'])}."
    text += f" Type `{option['type']}`" + (f", by default `{default}`." if default else ".")
    return textwrap.fill(
        f"* `{name}`: {text}",
        WIDTH,
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def listed() -> str:
    """All settings, those of several roles first."""
    parts = []
    shared = {name: one for name, one in settings().items() if name.startswith(SHARED)}
    groups = [("Of several roles", shared)]
    for role in roles():
        own = {
            name: one for name, one in settings().items() if one[0] == role and not name.startswith(SHARED)
        }
        groups.append((f"Role {role}", own))
    for title, group in groups:
        if group:
            items = [item(name, role, option) for name, (role, option) in sorted(group.items())]
            parts += [f"## {title}", "", *items, ""]
    return "\n".join(parts)


def page(text: str) -> str:
    """The page with the list between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{listed()}\n{END}{rest.partition(END)[2]}"


def written() -> dict[Path, str]:
    """{path: the text that it has to have}."""
    found = {ROLES / role / "meta/argument_specs.yml": with_copies(role) for role in roles()}
    return found | {PAGE: page(PAGE.read_text())}


if __name__ == "__main__":
    for file, text in written().items():
        file.write_text(text)
