# SPDX-License-Identifier: Apache-2.0
"""Build the Ansible collection jetson_k3s.cluster from the checkout, without network.

In the checkout a role carries its own modules and filters, found by their bare names. A role of a collection
cannot: there modules, filters and module_utils are in `plugins/`, and only their full names are found.
"""

import argparse
import gzip
import hashlib
import io
import json
import re
import runpy
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

from release import version
from tools.process import ToolError, run

CHECKOUT = Path(__file__).parents[1]
HERE = Path(__file__).parent
NAME = "jetson_k3s.cluster"

# What goes in as it is: files and directories of the checkout.
PARTS = (
    "LICENSE",
    "CHANGELOG.md",
    "SECURITY.md",
    "inventory.example",
    "docs",
    "playbooks",
    "roles",
    "plugin/deploy/base",
    "plugin/deploy/agent",
    "plugin/deploy/dra",
)
OWN = {"README.md": "README.md", "runtime.yml": "meta/runtime.yml"}
# Directory inside a role -> directory of the collection.
PLUGINS = {
    "library": "plugins/modules",
    "filter_plugins": "plugins/filter",
    "module_utils": "plugins/module_utils",
}
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def filter_names(plugin: Path) -> list[str]:
    """Names of the filters that a filter plugin brings."""
    return sorted(runpy.run_path(str(plugin))["FilterModule"]().filters())


def with_full_filter_names(text: str, names: list[str]) -> str:
    """YAML or a template in which `| name` of our own filters became `| jetson_k3s.cluster.name`."""
    own = "|".join(map(re.escape, names))
    return re.sub(rf"(\| *)({own})\b", rf"\g<1>{NAME}.\g<2>", text)


def with_full_imports(text: str, names: list[str]) -> str:
    """A module in which our own module_utils are imported from the collection."""
    own = "|".join(map(re.escape, names))
    return re.sub(
        rf"\bansible\.module_utils\.({own})\b", rf"ansible_collections.{NAME}.plugins.module_utils.\1", text
    )


def stage(target: Path) -> None:
    """Lay out the sources of the collection in `target`."""
    for part in PARTS:
        source, copy = CHECKOUT / part, target / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=UNWANTED)
        else:
            shutil.copyfile(source, copy)
    for name, place in OWN.items():
        (target / place).parent.mkdir(exist_ok=True)
        shutil.copyfile(HERE / name, target / place)
    galaxy = yaml.safe_load((HERE / "galaxy.template.yml").read_text()) | {"version": version.current()}
    (target / "galaxy.yml").write_text(yaml.safe_dump(galaxy, sort_keys=False))

    for inside, place in PLUGINS.items():
        (target / place).mkdir(parents=True)
        for directory in sorted(target.glob(f"roles/*/{inside}")):
            for plugin in directory.glob("*.py"):
                if (target / place / plugin.name).exists():
                    raise SystemExit(f"two roles have {inside}/{plugin.name}: give one another name")
                plugin.rename(target / place / plugin.name)
            directory.rmdir()

    utils = sorted(path.stem for path in (target / PLUGINS["module_utils"]).glob("*.py"))
    for module in target.glob("plugins/mod*/*.py"):
        module.write_text(with_full_imports(module.read_text(), utils))
    filters = [
        name for path in (target / PLUGINS["filter_plugins"]).glob("*.py") for name in filter_names(path)
    ]
    for suffix in ("yml", "j2"):
        for text in [*target.glob(f"roles/**/*.{suffix}"), *target.glob(f"playbooks/**/*.{suffix}")]:
            text.write_text(with_full_filter_names(text.read_text(), filters))


def normalise(archive: Path) -> None:
    """Write the archive again without what differs from build to build: times, and the order of files."""
    with tarfile.open(archive) as tar:
        contents = {
            member: file.read() if (file := tar.extractfile(member)) else b"" for member in tar.getmembers()
        }
    named = {member.name: member for member in contents}
    files, manifest = (json.loads(contents[named[name]]) for name in ("FILES.json", "MANIFEST.json"))
    files["files"].sort(key=lambda entry: entry["name"])
    contents[named["FILES.json"]] = listing = json.dumps(files, indent=1).encode()
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listing).hexdigest()
    contents[named["MANIFEST.json"]] = json.dumps(manifest, indent=1).encode()
    with (
        archive.open("wb") as packed,
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for _, member in sorted(named.items()):
            member.mtime, member.size, member.pax_headers = 0, len(contents[member]), {}
            tar.addfile(member, io.BytesIO(contents[member]))


def build(output: Path) -> Path:
    """Build the collection's archive into the directory `output`; return its path. Raises ToolError."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-collection-") as directory:
        stage(Path(directory))
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        where = f"--output-path={output.resolve()}"
        run([galaxy, "collection", "build", "--force", where], cwd=Path(directory))
    archive = output / f"{NAME.replace('.', '-')}-{version.current()}.tar.gz"
    normalise(archive)
    return archive


def main() -> int:
    """Build, and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m collection.build", description=__doc__)
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist", help="directory (default: dist)")
    output = parser.parse_args().output
    try:
        sys.stdout.write(f"{build(output)}\n")
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
