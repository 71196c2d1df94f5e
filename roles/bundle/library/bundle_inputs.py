#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Whether a bundle can be made, before anything is downloaded. Changes nothing. Runs on the controller."""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: bundle_inputs
short_description: Whether everything is there that an offline bundle is made of
description:
  - Fails with one sentence for each file that is not there, for a directory that cannot be written, and for a
    full disk.
options:
  path: {type: path, required: true, description: Directory in which the bundle is made; it need not exist.}
  plugin: {type: path, required: true, description: The plugin's image.}
  files: {type: list, elements: path, required: true, description: The other files that the owner has named.}
  downloads: {type: list, elements: str, required: true, description: Names of the downloaded files.}
"""

RETURN = r"""
path: {type: str, description: 'The directory, absolute.'}
"""

# K3s' two files are about 300 MB (v1.36), and twice there until they are compared.
DOWNLOAD_BYTES = 600_000_000


def nearest(path):
    """The directory itself, or the nearest one above that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def megabytes(number):
    """For people."""
    return "{} MB".format(-(-number // 1_000_000))


def problems(path, plugin, files, downloads):
    """What stands in the way, each with the way out."""
    build = "Build the plugin's image with `make image`, or name that of a release in bundle_plugin_archive"
    name = "Correct it in bundle_files or bundle_release_signers"
    found = [
        "{} is not there. {}.".format(file, build if file == plugin else name)
        for file in [plugin, *files]
        if not os.path.isfile(file)
    ]
    there = nearest(os.path.abspath(path))
    other = "Give another directory with -e jetson_k3s_bundle=DIRECTORY"
    if not os.access(there, os.W_OK | os.X_OK):
        return [*found, "{} cannot be written by this user. {}.".format(there, other)]
    needed = sum(os.path.getsize(file) for file in [plugin, *files] if os.path.isfile(file))
    if not all(os.path.exists(os.path.join(path, name)) for name in downloads):
        needed += DOWNLOAD_BYTES
    free = shutil.disk_usage(there).free
    if free < needed:
        room = "{} has {} free, and the bundle needs {}. {}, or free some."
        found.append(room.format(there, megabytes(free), megabytes(needed), other))
    return found


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "plugin": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "path", "required": True},
            "downloads": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    found = problems(**module.params)
    if found:
        lines = ["Nothing was downloaded, as the bundle cannot be made:", *("* " + one for one in found)]
        module.fail_json(msg="\n".join(lines))
    module.exit_json(changed=False, path=os.path.abspath(module.params["path"]))


if __name__ == "__main__":
    main()
