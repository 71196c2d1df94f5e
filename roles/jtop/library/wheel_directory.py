#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Unpack wheels of pure Python into a directory that goes on PYTHONPATH; the board needs no pip.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import shutil
import zipfile

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: wheel_directory
short_description: Wheels of pure Python, unpacked
description:
  - Unpacks wheels into one new directory, which appears with all of its content or not at all. A directory
    that is there is left alone, so its name has to change with the content.
options:
  wheels: {type: list, elements: path, required: true, description: 'The wheels, on the board.'}
  path: {type: path, required: true, description: The directory.}
"""

RETURN = r"""# """


class WheelError(Exception):
    """A file cannot be unpacked; the text says which one and why."""


def unpack(wheel, target):
    """Add the content of one wheel; WheelError when it is damaged or not made of Python alone."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            compiled = [name for name in names if name.endswith(".so")]
            if compiled:
                raise WheelError(
                    "{}: has compiled code ({}), which fits one Python only".format(wheel, compiled[0])
                )
            archive.extractall(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise WheelError("{}: cannot be unpacked: {}".format(wheel, error)) from error


def make(wheels, path):
    """Make the directory in one step; what an interrupted run has left beside it goes."""
    partial = path + ".new"
    shutil.rmtree(partial, ignore_errors=True)
    old = os.umask(0o022)  # sudo may have a stricter one, and every user's Python reads the result
    try:
        os.makedirs(partial)
        for wheel in wheels:
            unpack(wheel, partial)
    except WheelError:
        shutil.rmtree(partial)
        raise
    finally:
        os.umask(old)
    os.rename(partial, path)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "wheels": {"type": "list", "elements": "path", "required": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    changed = not os.path.isdir(path)
    if changed and not module.check_mode:
        try:
            make(module.params["wheels"], path)
        except WheelError as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
