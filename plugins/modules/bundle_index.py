#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write bundle.yml and SHA256SUMS of an offline bundle from its files. Runs on the controller."""

import os
from typing import Any, Dict, Optional

import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import (
    DIRECTORIES,
    BundleError,
    archived_images,
    jtop,
    sha256,
)

DOCUMENTATION = r"""
module: bundle_index
short_description: The index of an offline bundle
description:
  - Reads the names of the images from the archives of one architecture, writes C(bundle.yml), and then
    C(SHA256SUMS) over every other file. Each file is replaced in one step, C(SHA256SUMS) last.
options:
  path: {type: path, required: true, description: Directory of the bundle.}
  arch: {required: true, description: C(arm64) or C(amd64); a bundle may have both.}
  k3s_version:
    description:
      - Version of the K3s in it. Without it the directory is a release of this project, which brings
        nothing but the plugin's image to a bundle.
"""

RETURN = r"""
versions: {type: dict, description: The content of bundle.yml.}
"""

Data = Dict[str, Any]  # parsed YAML

SUMS, INDEX = "SHA256SUMS", "bundle.yml"
SIGNATURE = SUMS + ".sig"  # of a release
FORMAT = 1


def one_image(path: str, name: str, word: str = "") -> str:
    """The archive's only image whose name contains this text; BundleError for none or several."""
    images = sorted(image for image in archived_images(os.path.join(path, name)) if word in image)
    if len(images) != 1:
        raise BundleError(
            "{} has {} images{}: {}; expected is one".format(
                name,
                len(images),
                " named like {!r}".format(word) if word else "",
                ", ".join(images) or "none has a name",
            )
        )
    return images[0]


def describe(path: str, arch: str, k3s_version: Optional[str]) -> Data:
    """The content of bundle.yml, of a release's without k3s_version; BundleError for a wrong archive."""
    release: Data = {
        "version": FORMAT,
        "plugin_image": one_image(path, "tegra-device-plugin-{}.tar.gz".format(arch)),
    }
    if k3s_version is None:
        return release
    for name in os.listdir(path):
        if name.startswith("device-query-") and name.endswith("-{}.tar.gz".format(arch)):
            one_image(path, name)  # the owner's, of which verification runs the one image
    return dict(
        release,
        k3s_version=k3s_version,
        pause_image=one_image(path, "k3s-airgap-images-{}.tar.gz".format(arch), "pause"),
        **jtop(path),
    )


def sums(path: str) -> str:
    """The text of SHA256SUMS over the bundle's other files, its wheels and its images of the user."""
    names = [
        name
        for name in os.listdir(path)
        if name not in (SUMS, SIGNATURE, *DIRECTORIES) and not name.startswith(".")
    ]
    for directory in DIRECTORIES:
        if os.path.isdir(os.path.join(path, directory)):
            names += ["{}/{}".format(directory, name) for name in os.listdir(os.path.join(path, directory))]
    names.sort()
    return "".join("{}  {}\n".format(sha256(os.path.join(path, name)), name) for name in names)


def put(path: str, text: str) -> bool:
    """Write a file in one step unless it says that already; was it written?"""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            if stream.read() == text:
                return False
    replace_file(path, text)
    return True


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "arch": {"type": "str", "required": True},
            "k3s_version": {"type": "str"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    if module.check_mode:
        module.exit_json(changed=not os.path.exists(os.path.join(path, SUMS)), versions={})
    try:
        versions = describe(path, module.params["arch"], module.params["k3s_version"])
        changed = put(os.path.join(path, INDEX), yaml.safe_dump(versions, default_flow_style=False))
        changed = put(os.path.join(path, SUMS), sums(path)) or changed
    except (BundleError, OSError, KeyError, ValueError) as error:
        module.fail_json(msg="{}: {}".format(path, error))
    module.exit_json(changed=changed, versions=versions)


if __name__ == "__main__":
    main()
