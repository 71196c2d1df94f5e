# SPDX-License-Identifier: Apache-2.0
"""Build the Ansible collection jetson_k3s.cluster from the checkout, without network.

In the checkout a role carries its own modules and filters, found by their bare names. A role of a collection
cannot: there modules, filters and what modules share live in `plugins/`, and only their full names are found.
"""

import argparse
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[1]
HERE = Path(__file__).parent
NAME = "jetson_k3s.cluster"

# What goes in as it is: files and directories of the checkout.
PARTS = ("LICENSE", "CHANGELOG.md", "inventory.example", "docs", "playbooks", "roles", "plugin/deploy/base")
OWN = {"README.md": "README.md", "runtime.yml": "meta/runtime.yml"}
# Directory inside a role -> directory of the collection.
PLUGINS = {
    "library": "plugins/modules",
    "filter_plugins": "plugins/filter",
    "module_utils": "plugins/module_utils",
}
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def version() -> str:
    """The version of everything in the checkout."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


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
    galaxy = yaml.safe_load((HERE / "galaxy.template.yml").read_text()) | {"version": version()}
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


def build(output: Path) -> Path:
    """Build the collection's archive into the directory `output`; return its path."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-collection-") as directory:
        stage(Path(directory))
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        command = [str(galaxy), "collection", "build", "--force", f"--output-path={output.resolve()}"]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return output / f"{NAME.replace('.', '-')}-{version()}.tar.gz"


def main() -> int:
    """Build, and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m collection.build", description=__doc__)
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist", help="directory (default: dist)")
    sys.stdout.write(f"{build(parser.parse_args().output)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
