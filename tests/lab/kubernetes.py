# SPDX-License-Identifier: Apache-2.0
"""Kubernetes 1.36 for the lab, packed into the one-file K3s stand-in. It drives containerd.

`python -m tests.lab.kubernetes` builds it and prints where it is.
"""

import argparse
import hashlib
import io
import json
import shutil
import sys
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from tests.lab import debian, gomodules
from tests.lab.paths import cached
from tests.lab.process import LabError, print_path, say, step

VERSION = "1.36"
PROGRAMS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl", "kube-proxy")
STANDIN_SOURCES = Path(__file__).parent / "k3s_standin"
MAIN = "from k3s_standin.cli import main\n\nmain()\n"
# Isolated, and without site: it needs nothing but the standard library, and starts sooner.
INTERPRETER = "/usr/bin/python3 -IS"


def k3s_standin(arch: str | None = None) -> Path:
    """Return the executable from the cache, built when absent; `arch` is Debian's name of the architecture.

    Raises LabError when it cannot be built.
    """
    payload = from_modules(arch or debian.architecture())
    sources = zip_sources(payload)
    version = f"{json.loads((payload / 'build.json').read_text())['kubernetes']}+k3s.standin"
    recipe = (INTERPRETER, payload.name, sorted(sources.items()), version)
    digest = hashlib.sha256(repr(recipe).encode())
    entry = f"k3s-standin/{payload.name}-{digest.hexdigest()[:12]}"
    return cached(entry, lambda out: pack(out, payload, sources, version)) / "k3s"


def from_modules(arch: str) -> Path:
    """Return the cached directory with hyperkube, kine, containerd, the CNI plugins and build.json."""
    modules = (f"kubernetes-{VERSION}", "kine", "containerd", "cni")
    recipe = hashlib.sha256(repr([gomodules.digest(name) for name in modules]).encode()).hexdigest()[:12]

    def gather(out: Path) -> None:
        out.mkdir()
        for name in modules:
            for program in gomodules.programs(name, arch).iterdir():
                shutil.copy(program, out)
        facts = {
            "kubernetes": gomodules.versions(modules[0])["k8s.io/kubernetes"],
            "datastore": f"kine {gomodules.versions('kine')['github.com/k3s-io/kine'].removeprefix('v')}",
            "programs": list(PROGRAMS),
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()},
        }
        (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n")

    return cached(f"kubernetes/{VERSION}-{arch}-{recipe}", gather)


def zip_sources(payload: Path) -> dict[str, bytes]:
    """Return name and content of the Python files in the executable: the stand-in's own, and PyYAML's.

    It reads config.yaml. A board has Python and may lack PyYAML; its pure Python form is 200 kB.
    """
    sources = {"__main__.py": MAIN.encode()}
    for path in sorted(STANDIN_SOURCES.glob("*.py")):
        sources[f"k3s_standin/{path.name}"] = path.read_bytes()
    digest = hashlib.sha256((payload / "build.json").read_bytes()).hexdigest()
    known = {"DIGEST": digest, "ORIGIN": "Go modules", "RUNTIME": "containerd"}
    sources["k3s_standin/packed.py"] = "".join(f"{key} = {text!r}\n" for key, text in known.items()).encode()
    spec = find_spec("yaml")
    if spec is None or spec.origin is None:
        raise LabError("PyYAML is missing here; install the project's dependencies into this Python")
    for path in sorted(Path(spec.origin).parent.glob("*.py")):
        sources[f"yaml/{path.name}"] = path.read_bytes()
    return sources


def pack(out: Path, payload: Path, sources: Mapping[str, bytes], version: str) -> None:
    """Make `out`/k3s, which names `version`: a zip archive that Python runs, with the programs inside."""
    out.mkdir()
    target = out / "k3s"
    with step("packing the K3s stand-in"):
        with target.open("wb") as file:
            file.write(f"#!{INTERPRETER}\n".encode())
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in sorted(sources.items()):
                    archive.writestr(stamped(name), content)
                archive.writestr(stamped("payload/version"), version)
                for name in ("build.json", *json.loads((payload / "build.json").read_text())["files"]):
                    entry = stamped(f"payload/{name}")
                    with (payload / name).open("rb") as source, archive.open(entry, "w") as sink:
                        shutil.copyfileobj(source, sink, io.DEFAULT_BUFFER_SIZE * 64)
        target.chmod(0o755)
    say(f"the K3s stand-in is {target.stat().st_size / 1e6:.0f} MB")


def stamped(name: str) -> zipfile.ZipInfo:
    """Return a zip entry whose time is fixed, so that the same input makes the same file."""
    entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def main() -> int:
    """Build what is absent and print the executable's path."""
    argparse.ArgumentParser(
        prog="python -m tests.lab.kubernetes", description="Build the K3s stand-in with Kubernetes 1.36."
    ).parse_args()
    return print_path(k3s_standin)


if __name__ == "__main__":
    sys.exit(main())
