#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pack Debian packages together with the signed indexes that list them.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import subprocess
import tarfile
import tempfile
from typing import IO, Iterable, Iterator, List, Set

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import sha256

DOCUMENTATION = r"""
module: debs_archive
short_description: Debian packages and their signed indexes in one archive
description:
  - Packs the packages of O(directory), and from the lists of apt each index that has one of them, with the
    signed file of its source. C(debs_verified) reads the archive.
options:
  directory: {type: path, required: true, description: Where the packages are.}
  path: {type: path, required: true, description: The archive to write.}
"""

RETURN = r"""
sources: {type: list, elements: str, description: The package sources whose indexes are in the archive.}
"""

# A file of apt's lists has the name of its address. An index begins like the signed file of its source.
SIGNED = ("InRelease", "Release", "Release.gpg")


def prefix_of(index: str, names: List[str]) -> str:
    """What the names of an index and of its source's signed file begin with, else that of the index alone."""
    prefixes = [name[: -len(one)] for name in names for one in SIGNED[:2] if name.endswith("_" + one)]
    return max(
        [one for one in prefixes if index.startswith(one)] or [index.partition("Packages")[0]], key=len
    )


def has_any(lines: Iterable[bytes], digests: Set[str], sink: IO[bytes]) -> bool:
    """Whether an index, which is copied to the sink, lists one of these packages."""
    found = False
    for line in lines:
        sink.write(line)
        found = found or (line.startswith(b"SHA256:") and line[7:].strip().decode() in digests)
    return found


def add(archive: tarfile.TarFile, name: str, stream: IO[bytes]) -> None:
    """Add a file to the archive."""
    member = tarfile.TarInfo(name)
    member.size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    archive.addfile(member, stream)


def pack(archive: tarfile.TarFile, packages: List[str], indexes: List[str], scratch: str) -> List[str]:
    """Add packages, and the indexes that list one of them. Returns their sources. OSError.

    `scratch` is a directory for the content of indexes, which apt may have compressed.
    """
    for path in packages:
        with open(path, "rb") as stream:
            add(archive, os.path.basename(path), stream)
    digests = {sha256(path) for path in packages}
    sources: Set[str] = set()
    for path in indexes:
        directory, index = os.path.split(path)
        names = os.listdir(directory)
        prefix = prefix_of(index, names)
        source = prefix.rstrip("_")
        with tempfile.TemporaryFile(dir=scratch) as plain:
            if not has_any(read_index(path), digests, plain):
                continue
            component = index[len(prefix) :].partition("Packages")[0]
            add(archive, "{}/{}Packages".format(source, component), plain)
        for one in SIGNED:
            if source not in sources and prefix + one in names:
                with open(os.path.join(directory, prefix + one), "rb") as stream:
                    add(archive, "{}/{}".format(source, one), stream)
        sources.add(source)
    return sorted(sources)


def read_index(path: str) -> Iterator[bytes]:
    """The lines of an index of apt, which may be compressed. OSError."""
    argv = ["/usr/lib/apt/apt-helper", "cat-file", path]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        yield from process.stdout
    if process.returncode != 0:
        raise OSError("apt-helper cannot read {}".format(path))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "path": {"type": "path", "required": True},
        },
    )
    path = module.params["path"]
    listed = module.run_command(
        ["apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Packages"], check_rc=True
    )[1]
    packages = sorted(glob.glob(os.path.join(glob.escape(module.params["directory"]), "*.deb")))
    try:
        with tarfile.open(path, "w") as archive:
            sources = pack(archive, packages, sorted(set(listed.splitlines()) - {""}), os.path.dirname(path))
    except OSError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, sources=sources)


if __name__ == "__main__":
    main()
