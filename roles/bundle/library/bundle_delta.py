#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write what a bundle has and an earlier one has not. Runs on the controller; changes neither of the two."""

import os
import shutil

import yaml
from ansible.module_utils.atomic_files import replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.bundle_archive import DELTA, BundleError, parse_sums, sha256

DOCUMENTATION = r"""
module: bundle_delta
short_description: The files by which a bundle differs from an earlier one
description:
  - Writes a directory with the files that differ, the whole C(SHA256SUMS) of the new bundle, its
    C(bundle.yml), and C(delta.yml), which says against which bundle it was made. Laid over a copy of that one
    it is the new bundle, as C(SHA256SUMS) proves.
author: The jetson-k3s authors
options:
  path:
    description: Directory of the new bundle.
    type: path
    required: true
  since:
    description: Directory of the earlier bundle.
    type: path
    required: true
  delta:
    description: Directory that is written. One that has other files than a delta's is refused.
    type: path
    required: true
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
files:
  description: Names of the files in it, without C(delta.yml).
  returned: success
  type: list
  elements: str
size:
  description: Their bytes.
  returned: success
  type: int
"""

SUMS, INDEX = "SHA256SUMS", "bundle.yml"


def read(path, name):
    """Text of a bundle's file; BundleError when there is none."""
    try:
        with open(os.path.join(path, name), encoding="utf-8") as handle:
            return handle.read()
    except OSError as error:
        raise BundleError("{} is no bundle: {}".format(path, error)) from error


def changed_files(new, old):
    """Names of what the new SHA256SUMS lists and the old one has not, or not so, and of the index."""
    return sorted({name for name, digest in new.items() if old.get(name) != digest} | {INDEX, SUMS})


def description(path):
    """What delta.yml says of the bundle that it goes over."""
    versions = yaml.safe_load(read(path, INDEX))
    named = {key: versions[key] for key in ("k3s_version", "plugin_image") if key in versions}
    return yaml.safe_dump(dict(named, since=sha256(os.path.join(path, SUMS))), default_flow_style=False)


def outdated(delta, names):
    """Files of an earlier delta in this directory that go; BundleError where it has been something else."""
    there = sorted(os.listdir(delta)) if os.path.isdir(delta) else []
    if there and DELTA not in there:
        raise BundleError("{} is there and is no delta: remove it, or name another bundle".format(delta))
    return [name for name in there if name not in names and name != DELTA]


def put(source, target):
    """Copy a file in one step unless it is there already; was it copied?"""
    if os.path.exists(target) and sha256(target) == sha256(source):
        return False
    partial = os.path.join(os.path.dirname(target), ".{}".format(os.path.basename(target)))
    shutil.copyfile(source, partial)
    os.rename(partial, target)
    return True


def write(path, names, text, delta):
    """Bring the directory up to date; was anything written?

    First comes delta.yml, by which a directory is known whose writing was cut off; last SHA256SUMS.
    """
    os.makedirs(delta, 0o755, exist_ok=True)
    changed = not os.path.exists(os.path.join(delta, DELTA)) or read(delta, DELTA) != text
    if changed:
        replace_file(os.path.join(delta, DELTA), text)
    for name in outdated(delta, names):
        os.unlink(os.path.join(delta, name))
        changed = True
    for name in sorted(names, key=lambda name: (name == SUMS, name)):
        changed = put(os.path.join(path, name), os.path.join(delta, name)) or changed
    return changed


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={name: {"type": "path", "required": True} for name in ("path", "since", "delta")},
        supports_check_mode=True,
    )
    path, since, delta = (module.params[name] for name in ("path", "since", "delta"))
    try:
        names = changed_files(parse_sums(read(path, SUMS)), parse_sums(read(since, SUMS)))
        text = description(since)
        gone = outdated(delta, names)
        if module.check_mode:
            changed = bool(gone) or not os.path.exists(os.path.join(delta, DELTA))
        else:
            changed = write(path, names, text, delta)
        size = sum(os.path.getsize(os.path.join(path, name)) for name in names)
    except (BundleError, OSError, ValueError, yaml.YAMLError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, files=names, size=size)


if __name__ == "__main__":
    main()
