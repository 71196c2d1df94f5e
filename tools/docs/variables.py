# SPDX-License-Identifier: Apache-2.0
"""The list of a role's variables, from its argument_specs and defaults."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

LONGEST_DEFAULT = 60  # characters; a longer one is read better where it stands
WRAP = textwrap.TextWrapper(width=118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
NO_VARIABLES = "The role has no variables."


def markdown(text: str) -> str:
    """A description of argument_specs as Markdown."""
    return re.sub(r"C\((.*?)\)", r"`\1`", " ".join(text.split()))


def default_of(name: str, option: dict[str, Any], defaults: dict[str, Any]) -> str:
    """What is said of a variable's default: a value, or how the role comes to one."""
    if name not in defaults:
        return "required" if option.get("required") else "no default"
    value = defaults[name]
    text = value if isinstance(value, str) else json.dumps(value)
    if "{{" in text:
        return "default [computed](defaults/main.yml)"
    if len(text) > LONGEST_DEFAULT:
        return "default [long](defaults/main.yml)"
    return f"default `{text}`" if text else "default empty"


def listed(options: dict[str, Any], defaults: dict[str, Any]) -> str:
    """One item per variable, in the order of the specification."""
    items = []
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        choices = option.get("choices")
        description = markdown(option["description"])
        if choices:
            description += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        items.append(f"* `{name}` ({kind}, {default_of(name, option, defaults)}): {description}")
    return "\n".join(WRAP.fill(item) for item in items)


def render(role: Path) -> str:
    """The lists of all entry points of a role; an entry point's own variables only."""
    entries = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    path = role / "defaults/main.yml"
    defaults = (yaml.safe_load(path.read_text()) if path.exists() else None) or {}
    main = entries.get("main", {}).get("options") or {}
    parts = [listed(main, defaults) if main else NO_VARIABLES]
    for name, entry in entries.items():
        if name == "main":
            continue
        own = {key: value for key, value in (entry.get("options") or {}).items() if value != main.get(key)}
        parts.append(WRAP.fill(f"Entry point `{name}.yml`: {markdown(entry['short_description'])}."))
        if own:
            parts.append(listed(own, defaults))
    return "\n\n".join(parts)
