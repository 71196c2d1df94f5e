#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What the images of an archive, or an image of a registry, need of a board. Runs on the controller."""

import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import image_archive, image_skopeo
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import BundleError
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_requirements import requirements

DOCUMENTATION = r"""
module: image_info
short_description: Architecture, CUDA and L4T of images
description:
  - Reads the configuration of each image. An archive is not unpacked, and of a registry no layer is copied.
options:
  image: {required: true, description: 'The absolute path of an archive, or the name of an image.'}
  architectures:
    type: list
    elements: str
    default: [arm64, amd64]
    description: Those that are read of an image of a registry.
"""

RETURN = r"""
images:
  type: list
  description: >-
    C(name), C(architecture), C(cuda), C(cuda_arch) and C(l4t) of each image, empty where it says nothing.
"""


def described(name: str, config: Dict[str, Any]) -> Dict[str, str]:
    """An entry of the result."""
    return dict(requirements(config, name), name=name)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "architectures": {"type": "list", "elements": "str", "default": ["arm64", "amd64"]},
        },
        supports_check_mode=True,
    )
    image, images = module.params["image"], []
    try:
        if os.path.isabs(image):
            for one in image_archive.read(image):
                images += [described(name, one.described) for name in one.names or [os.path.basename(image)]]
        else:
            reference = image_skopeo.Reference(image)
            architectures = module.params["architectures"]
            for config in image_skopeo.configs(module.run_command, reference, architectures):
                images.append(described(reference.image, config))
    except (BundleError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, images=images)


if __name__ == "__main__":
    main()
