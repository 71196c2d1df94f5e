#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Of a directory of Debian packages those that some packages need on this board, and no other.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.deb822 import parse_fields

DOCUMENTATION = r"""
module: debs_needed
short_description: Files of the packages that are missing
description:
  - The files of O(packages), and of what they depend on as far as the board lacks it. What the board has in a
    version that is new enough stays as it is, so a board that lacks NVIDIA's runtime keeps its Docker.
options:
  directory: {type: path, required: true, description: Where the files are.}
  packages: {type: list, elements: str, required: true, description: Names of the packages that are wanted.}
"""

RETURN = r"""
paths: {type: list, elements: str, description: The files to install.}
"""

# One alternative of a dependency: `libc6:any (>= 2.34)` (Debian policy 7.1).
DEPENDENCY = re.compile(r"^([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\((<<|<=|=|>=|>>)\s*([^)\s]+)\))?$")
SHOW = "--showformat=${db:Status-Status}\t${Package}\t${Version}\t${Provides}\n"
FIELDS = ("Package", "Depends", "Pre-Depends", "Provides")


class Dependency(NamedTuple):
    """One alternative of a dependency. The operator and the version may be empty."""

    name: str
    operator: str
    version: str


def alternatives(field: Optional[str]) -> List[List[Dependency]]:
    """The alternatives of each dependency in a field."""
    groups = [group.split("|") for group in (field or "").replace("\n", " ").split(",") if group.strip()]
    matches = [[DEPENDENCY.match(one.strip()) for one in group] for group in groups]
    return [[Dependency(*match.groups(default="")) for match in group if match] for group in matches]


def provided(field: Optional[str]) -> List[str]:
    """Names in a field Provides."""
    return [one.name for group in alternatives(field) for one in group]


def installed_packages(text: str) -> Dict[str, Optional[str]]:
    """{name: version} of what `dpkg-query` shows; None is the version of a name that others provide."""
    found: Dict[str, Optional[str]] = {}
    for line in text.splitlines():
        status, name, version, provides = [*line.split("\t"), "", "", ""][:4]
        if status == "installed":
            found[name] = version
            for other in provided(provides):
                found.setdefault(other, None)
    return found


def needed(
    packages: List[str],
    debs: Dict[str, Dict[str, str]],
    installed: Mapping[str, Optional[str]],
    compare: Callable[[str, str, str], bool],
) -> List[str]:
    """Paths of what `packages` need. ValueError names those that no file has.

    `debs` is {path: fields}, `installed` {name: version}; `compare` judges two versions by an operator.
    """
    by_name = {fields["Package"]: path for path, fields in sorted(debs.items())}
    absent = [name for name in packages if name not in by_name]
    if absent:
        raise ValueError(", ".join(absent))
    offers = {name: path for path, fields in debs.items() for name in provided(fields.get("Provides"))}
    offers.update(by_name)

    def there(one: Dependency) -> bool:
        if one.name not in installed:
            return False
        version = installed[one.name]
        return not one.operator or (version is not None and compare(version, one.operator, one.version))

    found: List[str] = []
    todo = [by_name[name] for name in packages]
    while todo:
        path = todo.pop(0)
        if path in found:
            continue
        found.append(path)
        for field in ("Pre-Depends", "Depends"):
            for group in alternatives(debs[path].get(field)):
                if not any(there(one) for one in group):
                    # What no file has either, apt will name.
                    todo.extend([offers[one.name] for one in group if one.name in offers][:1])
    return sorted(found)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "packages": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )

    def run(*argv: str) -> str:
        out: str = module.run_command(list(argv), check_rc=True)[1]
        return out

    def compare(one: str, operator: str, other: str) -> bool:
        # dpkg's own operators differ from the strict ones of dependencies by name only.
        word = {"<<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">>": "gt"}[operator]
        code: int = module.run_command(["dpkg", "--compare-versions", one, word, other])[0]
        return code == 0

    directory, packages = module.params["directory"], module.params["packages"]
    files = sorted(glob.glob(os.path.join(directory, "*.deb")))
    if not files and module.check_mode:
        module.exit_json(changed=False, paths=[])
    debs = {path: parse_fields(run("dpkg-deb", "--field", path, *FIELDS)) for path in files}
    try:
        paths = needed(packages, debs, installed_packages(run("dpkg-query", "--show", SHOW)), compare)
    except ValueError as error:
        module.fail_json(
            msg="none of the archive's packages is {}; it has {}. Put it in.".format(
                error, ", ".join(sorted(fields["Package"] for fields in debs.values())) or "none"
            )
        )
    module.exit_json(changed=False, paths=paths)


if __name__ == "__main__":
    main()
