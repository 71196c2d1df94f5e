# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes for the lab, packed into the one-file K3s stand-in.

There are two. 1.20 drives Docker by itself; a newer one needs cri-dockerd for that. 1.36 drives containerd,
as K3s does without `--docker`. `python -m tests.lab.kubernetes` builds the first and prints where it is, with
`--kubernetes` another one, with `--version-suffix` the same under another version, with `--arch` for another
architecture (compiled here, not emulated). `LAB_K3S` uses a real K3s instead (tests/lab/k3s.py).
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

from tests.lab import debian, debian_kubernetes, gomodules, k3s
from tests.lab.paths import cached
from tests.lab.process import LabError, print_path, say, step

DOCKER, CONTAINERD = "1.20", "1.36"
RUNTIMES = {DOCKER: "docker", CONTAINERD: "containerd"}
"""What runs the pods of each version."""
STANDIN_SOURCES = Path(__file__).parent / "k3s_standin"
MAIN = "from k3s_standin.cli import main\n\nmain()\n"
# Isolated, and without site: it needs nothing but the standard library, and starts sooner.
INTERPRETER = "/usr/bin/python3 -IS"


def k3s_standin(
    version_suffix: str = "", arch: str | None = None, kubernetes: str = DOCKER, minors: int = 0
) -> Path:
    """Return the executable `k3s` of the lab: `$LAB_K3S`, else the stand-in from the cache, built when
    absent.

    `version_suffix` is appended to the version that the stand-in names, and `minors` added to its minor
    version, for tests of upgrades; `arch` is Debian's name of the boards' architecture, this machine's unless
    given; `kubernetes` is a key of RUNTIMES.
    `LAB_K3S` is for this machine's architecture and the first of them. Raises LabError when it cannot be
    built, or `LAB_K3S` names nothing.
    """
    arch = arch or debian.architecture()
    if (arch, kubernetes) == (debian.architecture(), DOCKER):
        own = k3s.chosen(version_suffix, minors)
        if own:
            return own
    payload = debian_kubernetes.binaries(arch) if kubernetes == DOCKER else from_modules(kubernetes, arch)
    debian_version = json.loads((payload / "build.json").read_text()).get("debian")
    origin = f"Debian's kubernetes {debian_version}" if debian_version else "Go modules"
    sources = zip_sources(payload, RUNTIMES[kubernetes], origin)
    version = named_version(payload, version_suffix, minors)
    recipe = (INTERPRETER, payload.name, sorted(sources.items()), version)
    digest = hashlib.sha256(repr(recipe).encode())
    entry = f"k3s-standin/{payload.name}-{digest.hexdigest()[:12]}"
    return cached(entry, lambda out: pack(out, payload, sources, version)) / "k3s"


def named_version(payload: Path, suffix: str = "", minors: int = 0) -> str:
    """Return the version that the stand-in names: SIMULATED as far as `suffix` and `minors` go."""
    kubernetes = json.loads((payload / "build.json").read_text())["kubernetes"]
    major, minor, patch = kubernetes.split(".")
    return f"{major}.{int(minor) + minors}.{patch}+k3s.standin{suffix}"


def from_modules(kubernetes: str, arch: str) -> Path:
    """Return the cached directory with hyperkube, kine, containerd, the CNI plugins and build.json."""
    modules = (f"kubernetes-{kubernetes}", "kine", "containerd", "cni")
    recipe = hashlib.sha256(repr([gomodules.recipe(name) for name in modules]).encode()).hexdigest()[:12]

    def gather(out: Path) -> None:
        out.mkdir()
        for name in modules:
            for program in gomodules.programs(name, arch).iterdir():
                shutil.copy(program, out)
        facts = {
            "kubernetes": gomodules.versions(modules[0])["k8s.io/kubernetes"],
            "datastore": f"kine {gomodules.versions('kine')['github.com/k3s-io/kine'].removeprefix('v')}",
            "programs": [*debian_kubernetes.PROGRAMS, "kube-proxy"],
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()},
        }
        (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n")

    return cached(f"kubernetes/{kubernetes}-{arch}-{recipe}", gather)


def zip_sources(payload: Path, runtime: str, origin: str) -> dict[str, bytes]:
    """Return name and content of the Python files in the executable: the stand-in's own, and PyYAML's.

    It reads config.yaml. A board has Python and may lack PyYAML; its pure Python form is 200 kB.
    """
    sources = {"__main__.py": MAIN.encode()}
    for path in sorted(STANDIN_SOURCES.glob("*.py")):
        sources[f"k3s_standin/{path.name}"] = path.read_bytes()
    digest = hashlib.sha256((payload / "build.json").read_bytes()).hexdigest()
    known = {"DIGEST": digest, "ORIGIN": origin, "RUNTIME": runtime}
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
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.kubernetes", description="Build the K3s stand-in."
    )
    parser.add_argument(
        "--version-suffix", default="", help="appended to the version that it names (e.g. 2), to try upgrades"
    )
    parser.add_argument(
        "--arch", choices=("amd64", "arm64"), help="architecture of the boards (default: this machine's)"
    )
    parser.add_argument(
        "--kubernetes", choices=RUNTIMES, default=DOCKER, help=f"version inside (default: {DOCKER})"
    )
    arguments = parser.parse_args()
    return print_path(lambda: k3s_standin(arguments.version_suffix, arguments.arch, arguments.kubernetes))


if __name__ == "__main__":
    sys.exit(main())
