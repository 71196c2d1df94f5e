#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Verify an offline bundle, or the images that were built here, and return its content. Changes nothing."""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_content import ARGUMENTS, found

DOCUMENTATION = r"""
module: bundle_info
short_description: Verify an offline bundle and return its content
description:
  - Runs on the controller. Compares every file that SHA256SUMS lists and reads image ids from the archives.
  - A damaged bundle does not fail the module; preflight turns its errors into findings.
options:
  path: {type: path, required: true, description: Directory of the bundle.}
  k3s_version:
    description: >-
      Without a bundle the release of K3s that boards download. O(path) then has no index, and the plugin's
      images as C(make image) writes them, if there are any.
  jtop:
    description: Without a bundle, the directory in O(path) with wheels of jetson-stats, if it is there.
    default: ""
"""

RETURN = r"""
path: {description: Directory of the bundle.}
wheels: {description: Directory of the wheels of jetson-stats. It may not exist.}
indexed: {type: bool, description: 'Is it a bundle?'}
versions:
  type: dict
  description: The content of bundle.yml. Without a bundle C(k3s_version), and C(jtop) if there are wheels.
files:
  type: dict
  description: >-
    State of each file of SHA256SUMS by its name: C(sha256), C(error), and ids (C(images)) and identities
    (C(contents)) of images by name or C(packages) with their versions.
images: {type: list, description: The images of the user, as module bundle_images describes them.}
errors: {type: list, description: Reasons why the bundle cannot be used.}
"""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.exit_json(changed=False, **found(module.params))


if __name__ == "__main__":
    main()
