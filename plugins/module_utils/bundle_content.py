# SPDX-License-Identifier: Apache-2.0
"""The content of a bundle, and of `dist` in a checkout, and what is wrong with it.

Runs on the controller, and is Python 3.6 compatible as all of this directory.
"""

import os
import re
import tarfile
from typing import Any, Dict

import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import built_images
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import (
    BundleError,
    archived_images,
    image_index,
    parse_sums,
    sha256,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import jtop as bundled_jtop

Data = Dict[str, Any]  # parsed YAML, and results

KEYS = ("k3s_version", "plugin_image", "pause_image")
FORMAT = 1
# NAME_VERSION_ARCHITECTURE.deb, as apt names what it downloads; an epoch's colon is %3a there.
DEB = re.compile(r"(?:.*/)?([a-z0-9][a-z0-9+.-]*)_([^_/]+)_[a-z0-9-]+\.deb$")
JTOP_VERSION = re.compile(r"[0-9]+([.][0-9A-Za-z]+)*$")


def package_versions(archive: str) -> Dict[str, str]:
    """{package: version} of an archive of Debian packages, by the names of its files."""
    with tarfile.open(archive) as tar:
        matches = map(DEB.match, tar.getnames())
        return {match.group(1): match.group(2).replace("%3a", ":") for match in matches if match}


def check_file(path: str, expected: str) -> Data:
    """State of one listed file: {sha256, error, images, contents, packages}."""
    state: Data = {"sha256": None, "images": {}, "contents": {}, "packages": {}, "error": "missing"}
    if not os.path.isfile(path):
        return state
    state["sha256"] = sha256(path)
    if state["sha256"] != expected:
        return dict(state, error="SHA-256 is {}, SHA256SUMS says {}".format(state["sha256"], expected))
    try:
        if path.endswith(".tar.gz"):
            images = archived_images(path)
            state["images"] = {name: image.id for name, image in images.items()}
            state["contents"] = {name: image.content for name, image in images.items()}
        elif os.path.basename(path).startswith("debs-"):
            state["packages"] = package_versions(path)
    except (BundleError, tarfile.TarError, KeyError, ValueError, OSError) as error:
        kind = "Debian packages" if os.path.basename(path).startswith("debs-") else "`docker save`"
        return dict(state, error="not an archive of {}: {}".format(kind, error))
    return dict(state, error=None)


def read_versions(path: str) -> Data:
    """The content of bundle.yml; BundleError when it is not one of ours."""
    try:
        with open(path) as handle:
            content = yaml.safe_load(handle)
    except yaml.YAMLError as error:
        raise BundleError("bundle.yml is not YAML: {}".format(error)) from error
    if not isinstance(content, dict) or content.get("version") != FORMAT:
        raise BundleError("bundle.yml does not say `version: {}`".format(FORMAT))
    missing = [key for key in KEYS if not isinstance(content.get(key), str)]
    if missing:
        raise BundleError("bundle.yml lacks {}".format(", ".join(missing)))
    return content


def check_wheels(versions: Data, sums: Dict[str, str]) -> None:
    """BundleError unless the wheels of bundle.yml are files of SHA256SUMS, without a directory."""
    jtop = versions.get("jtop")
    if jtop is None:
        return
    wheels = jtop.get("wheels") if isinstance(jtop, dict) else None
    if not isinstance(wheels, list) or not JTOP_VERSION.match(str(jtop.get("version"))):
        raise BundleError("bundle.yml: jtop must have `version` (such as 4.3.2) and `wheels` (a list)")
    unlisted = [str(name) for name in wheels if str(name) not in sums or "/" in str(name)]
    if unlisted:
        raise BundleError("bundle.yml: jtop has wheels that SHA256SUMS lacks: {}".format(", ".join(unlisted)))


def inspect(path: str) -> Data:
    """Content of the bundle at path, and what is wrong with it."""
    facts: Data = {"path": path, "wheels": path, "indexed": True}
    facts.update({"versions": {}, "files": {}, "images": [], "errors": []})
    try:
        with open(os.path.join(path, "SHA256SUMS")) as handle:
            sums = parse_sums(handle.read())
        facts["files"] = {
            name: check_file(os.path.join(path, name), digest) for name, digest in sorted(sums.items())
        }
        facts["versions"] = read_versions(os.path.join(path, "bundle.yml"))
        check_wheels(facts["versions"], sums)
        facts["images"] = image_index(path)
    except (BundleError, OSError) as error:
        facts["errors"].append(str(error))
    return facts


def inspect_built(path: str, k3s_version: str, jtop: str = "") -> Data:
    """The same without a bundle: the current images of the plugin in `dist` of a checkout, and wheels."""
    built = {name: os.path.join(path, name) for name in built_images.current(path)}
    versions: Data = {"k3s_version": k3s_version}
    directory = os.path.join(path, jtop)
    if jtop and os.path.isdir(directory):
        versions.update(bundled_jtop(directory))
        wheels = versions.get("jtop", {}).get("wheels", [])
        built.update({name: os.path.join(directory, name) for name in wheels})
    files = {name: check_file(file, sha256(file)) for name, file in built.items()}
    return {
        "path": path,
        "wheels": directory,
        "indexed": False,
        "versions": versions,
        "files": files,
        "images": [],
        "errors": [],
    }


ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "k3s_version": {"type": "str"},
    "jtop": {"type": "str", "default": ""},
}


def found(given: Data) -> Data:
    """The content of a bundle, or of `dist`, by the arguments of a task.

    No `ansible_facts`: the answer of any board may carry facts of the same name.
    """
    path, k3s_version = given["path"], given["k3s_version"]
    return inspect_built(path, k3s_version, given["jtop"]) if k3s_version else inspect(path)
