#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Begin a run's report, and publish the boards' reports as one page, as JUnit XML and for programs.

Runs on the controller.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import now
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_fleet import (
    Board,
    Fleet,
    board,
    fleet,
    index,
    line,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_junit import junit
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_page import page

DOCUMENTATION = r"""
module: gpu_report
short_description: The fleet's report out of the boards' reports
description:
  - Reads C(<board>.json) of each board in a directory, and in its C(previous) the one before, and writes
    C(index.html), C(junit.xml) and C(index.json) there. A board without a report is in them, as not verified.
  - With I(begin) the boards' reports become the previous ones first, so that no result of an earlier run
    can be taken for one of this.
options:
  reports: {type: path, required: true, description: The directory; made when it is not there.}
  templates: {type: path, required: true, description: The role's directory of templates.}
  boards: {type: list, elements: str, required: true, description: Names of the boards of this run.}
  inventory: {type: list, elements: str, required: true, description: Names of all boards of the cluster.}
  begin: {type: bool, default: false, description: Whether a run begins.}
"""

RETURN = r"""
fleet: {type: dict, description: The content of C(index.json).}
summary: {type: str, description: The result of several boards in a sentence. Empty for one board.}
page: {type: str, description: The path of C(index.html).}
"""

INDEX, PAGE, JUNIT, PREVIOUS = "index.json", "index.html", "junit.xml", "previous"


def load(path: Path) -> tuple[Any, str]:
    """A JSON file's content, None when there is none; and why it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"its report {path} cannot be read: {error}"


def read_board(reports: Path, name: str) -> Board:
    """A board with its report and the one before."""
    report, trouble = load(reports / f"{name}.json")
    previous, _ = load(reports / PREVIOUS / f"{name}.json")
    return board(name, report, previous, trouble)


def begin(reports: Path, boards: list[str]) -> None:
    """Put the boards' reports aside: they become the previous ones."""
    (reports / PREVIOUS).mkdir(parents=True, exist_ok=True)
    for name in boards:
        path = reports / f"{name}.json"
        if path.exists():
            path.replace(reports / PREVIOUS / path.name)


def run_of(reports: Path, boards: list[str]) -> tuple[str, list[str]]:
    """When the run started and its boards.

    A play knows some of them only: upgrade.yml publishes after every batch.
    """
    known, _ = load(reports / INDEX)
    names = [one["name"] for one in known["boards"]] if known else []
    if known and set(boards) <= set(names):
        return str(known["started"]), names
    return now(), boards


def publish(reports: Path, templates: Path, view: Fleet) -> None:
    """Write the fleet's report in its three forms, each file in one step."""
    replace_file(str(reports / PAGE), page(view, templates))
    replace_file(str(reports / JUNIT), junit(view))
    replace_file(str(reports / INDEX), json.dumps(index(view), indent=2) + "\n")


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "reports": {"type": "path", "required": True},
            "templates": {"type": "path", "required": True},
            "boards": {"type": "list", "elements": "str", "required": True},
            "inventory": {"type": "list", "elements": "str", "required": True},
            "begin": {"type": "bool", "default": False},
        }
    )
    reports, boards = Path(module.params["reports"]), module.params["boards"]
    if "index" in module.params["inventory"]:
        module.fail_json(msg=f"a board cannot be called index: {reports / INDEX} is the fleet's own report")
    try:
        if module.params["begin"]:
            begin(reports, boards)
            started = now()
        else:
            started, boards = run_of(reports, boards)
        others = [name for name in module.params["inventory"] if name not in boards]
        view = fleet(
            started,
            [read_board(reports, name) for name in boards],
            [read_board(reports, name) for name in others],
        )
        publish(reports, Path(module.params["templates"]), view)
    except OSError as error:
        module.fail_json(msg=f"the fleet's report cannot be written: {error}")
    # Each board has a summary of its own.
    together = line(view) if len(view.boards) > 1 else ""
    module.exit_json(changed=False, fleet=index(view), summary=together, page=str(reports / PAGE))


if __name__ == "__main__":
    main()
