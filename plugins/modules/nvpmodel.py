#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Put a Jetson into one of its power modes, unless that needs a reboot: then say so and leave the mode alone.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import re
import subprocess
from typing import Dict, NamedTuple, Optional

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: nvpmodel
short_description: The power mode of a Jetson
description:
  - Modes that differ in a power-gating mask (of TPCs and the like) can be changed by a reboot only. Such a
    change is reported and not made; C(nvpmodel -m ID --force) makes it and reboots.
options:
  mode: {required: true, description: 'Number or name of the mode, as /etc/nvpmodel.conf says.'}
  config: {type: path, default: /etc/nvpmodel.conf, description: 'The board''s modes.'}
"""

RETURN = r"""
id: {type: int, description: Number of the wanted mode.}
reboot_required: {type: bool, description: Whether this mode needs a reboot; then nothing was changed.}
"""

MODEL = re.compile(r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+?)\s*>$")
# Any other section, such as < PARAM ... > or < PM_CONFIG ... >.
SECTION = re.compile(r"^<")
# "TPC_POWER_GATING TPC_PG_MASK 240"; FBP, GPC and Thor's gpu_pg_mask are named alike.
MASK = re.compile(r"^\S+\s+(\S*PG_MASK)\s+(\S+)$", re.IGNORECASE)


class PowerModeError(Exception):
    """The mode cannot be had; the text says why."""


class Mode(NamedTuple):
    """A power mode of nvpmodel.conf."""

    name: str
    masks: Dict[str, str]


def parse_models(text: str) -> Dict[int, Mode]:
    """Modes of nvpmodel.conf, by their numbers."""
    models: Dict[int, Mode] = {}
    masks: Optional[Dict[str, str]] = None
    for line in map(str.strip, text.splitlines()):
        model, mask = MODEL.match(line), MASK.match(line)
        if model:
            masks = {}
            models[int(model.group(1))] = Mode(model.group(2), masks)
        elif SECTION.match(line):
            masks = None
        elif masks is not None and mask:
            masks[mask.group(1).upper()] = mask.group(2)
    return models


def parse_query(text: str) -> int:
    """Number of the present mode from `nvpmodel -q`: the line after the one with its name."""
    match = re.search(r"NV Power Mode: *\S+\s*\n\s*(\d+)", text)
    if match is None:
        raise PowerModeError("`nvpmodel -q` does not say a mode: {!r}".format(text.strip()))
    return int(match.group(1))


def find(models: Dict[int, Mode], wanted: str) -> int:
    """Number of a mode given by number or name; PowerModeError lists those there are."""
    for number, mode in models.items():
        if wanted.lower() in (str(number), mode.name.lower()):
            return number
    known = ", ".join("{} ({})".format(number, mode.name) for number, mode in sorted(models.items()))
    raise PowerModeError("this board has no power mode {}; it has {}".format(wanted, known or "none"))


def needs_reboot(models: Dict[int, Mode], present: int, wanted: int) -> bool:
    """Do the two modes differ in a mask? A present mode that is not in the file may differ in anything."""
    return present != wanted and (present not in models or models[present].masks != models[wanted].masks)


def describe(models: Dict[int, Mode], number: int) -> str:
    """A mode for people."""
    return "power mode {} ({})\n".format(number, models[number].name if number in models else "unknown")


def set_mode(program: str, number: int) -> None:
    """Call nvpmodel; PowerModeError with what it says when it fails.

    It asks when it sees a need to reboot that the file does not show; without anybody to answer that is a no.
    """
    process = subprocess.Popen(
        [program, "-m", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    said = process.communicate()[0]
    if process.returncode != 0:
        raise PowerModeError("`nvpmodel -m {}` fails: {}".format(number, said.strip()))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "required": True},
            "config": {"type": "path", "default": "/etc/nvpmodel.conf"},
        },
        supports_check_mode=True,
    )
    program = module.get_bin_path("nvpmodel", opt_dirs=["/usr/sbin"])
    if program is None or not os.path.exists(module.params["config"]):
        module.fail_json(msg="this board has no nvpmodel or no {}".format(module.params["config"]))

    def query() -> int:
        return parse_query(module.run_command([program, "-q"], check_rc=True)[1])

    try:
        with open(module.params["config"], encoding="utf-8", errors="replace") as stream:
            models = parse_models(stream.read())
        wanted, present = find(models, module.params["mode"]), query()
        reboot = needs_reboot(models, present, wanted)
        if present != wanted and not reboot and not module.check_mode:
            set_mode(program, wanted)
            reboot = query() != wanted
    except PowerModeError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=present != wanted and not reboot,
        id=wanted,
        reboot_required=reboot,
        diff={"before": describe(models, present), "after": describe(models, wanted)},
    )


if __name__ == "__main__":
    main()
