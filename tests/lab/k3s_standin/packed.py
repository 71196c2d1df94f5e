# SPDX-License-Identifier: Apache-2.0
"""What the packed executable knows of its payload; the packer writes this module anew."""

DIGEST = ""
"""Names the directory to which the programs are unpacked; empty in the sources, which have no payload."""

ORIGIN = ""
"""Where the programs come from, in words."""

RUNTIME = "docker"
"""What runs the pods: `docker`, or `containerd` with a Kubernetes that would need cri-dockerd for Docker."""
