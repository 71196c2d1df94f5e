# SPDX-License-Identifier: Apache-2.0
"""Images of a registry, by skopeo.

Runs on the controller, and is Python 3.6 compatible as all of this directory.
"""

import json
import re
from typing import Any, Callable, Dict, List, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import BundleError

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

REFERENCE = re.compile(
    r"^(?P<name>[a-z0-9][A-Za-z0-9.:_/-]*?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
ABSENT = (
    "{0}: skopeo is not on this computer, and copies images from registries. Install it (`sudo apt install "
    "skopeo`), or name an archive instead: `docker pull --platform linux/arm64 {0}`, `docker tag {0} {1}`, "
    "`docker save --output image.tar {1}`"
)
# As skopeo says that an image has no variant for the platform.
NO_PLATFORM = "no image found in"


class Reference:
    """The name of an image in a registry. BundleError if the text is not one."""

    def __init__(self, text: str) -> None:
        match = REFERENCE.match(text)
        if match is None:
            raise BundleError(
                "{}: neither a file that is there, nor the name of an image as "
                "REGISTRY/NAME:TAG@sha256:DIGEST".format(text)
            )
        self.text, self.repository = text, match.group("name")
        self.tag, self.digest = match.group("tag") or "", match.group("digest") or ""

    @property
    def image(self) -> str:
        """The image's name on the boards. Docker gives no name with a digest to an image that it loads."""
        tag = self.tag or ("sha256-" + self.digest.partition(":")[2][:12] if self.digest else "latest")
        return "{}:{}".format(self.repository, tag)

    @property
    def source(self) -> str:
        """The image for skopeo, which takes a tag or a digest."""
        return "docker://" + ("{}@{}".format(self.repository, self.digest) if self.digest else self.image)

    def pinned(self) -> None:
        """BundleError without a digest."""
        if not self.digest:
            raise BundleError(
                "{}: it has no digest, so another image could get this name later. Pin it: `skopeo "
                "inspect --format "
                "'{{{{.Digest}}}}' {}` prints the digest, and the entry is {}@sha256:DIGEST".format(
                    self.text, self.source, self.text
                )
            )


def skopeo(run: Run, architecture: str, arguments: List[str], reference: Reference) -> str:
    """The output of skopeo for images of one architecture, '' if there is none. BundleError."""
    command = ["skopeo", "--override-os", "linux", "--override-arch", architecture]
    try:
        code, out, err = run(command + arguments, handle_exceptions=False)
    except OSError:
        raise BundleError(ABSENT.format(reference.text, reference.image)) from None
    if code and NO_PLATFORM in err:
        return ""
    if code:
        raise BundleError("{}: skopeo could not read it: {}".format(reference.text, (err or out).strip()))
    return out or " "


def configs(run: Run, reference: Reference, architectures: List[str]) -> List[Dict[str, Any]]:
    """The configurations of an image of a registry, each once. BundleError."""
    found: List[Dict[str, Any]] = []
    for architecture in architectures:
        out = skopeo(run, architecture, ["inspect", "--config", reference.source], reference)
        config = json.loads(out) if out else None
        if config is not None and config not in found:
            found.append(config)
    if not found:
        raise BundleError("{}: it has no image for {}".format(reference.text, " or ".join(architectures)))
    return found


def copy(run: Run, reference: Reference, architecture: str, archive: str) -> bool:
    """Write the image for an architecture into an OCI archive, with the registry's layers; is there one?"""
    arguments = ["copy", "--quiet", reference.source, "oci-archive:" + archive]
    return bool(skopeo(run, architecture, arguments, reference))
