# SPDX-License-Identifier: Apache-2.0
"""Kubernetes 1.20 with Docker's shim, compiled from Debian's source package; etcd is Debian's binary.

Its dependencies are vendored inside. It is the last Kubernetes that needs no cri-dockerd to drive Docker and
that Debian has.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from images.arm64.emulation import QEMU
from tests.lab import debian
from tests.lab.paths import cache, cached
from tests.lab.process import LabError, compile_packages, run, say, step

HYPERKUBE_SOURCE = Path(__file__).parent / "hyperkube" / "main.go"
BUILD_PACKAGES = ("dpkg-dev", "golang-go", "make", "rsync", "debian-archive-keyring")
# `providerless` leaves the clouds' storage and load balancer code out: a board has no use for it. -trimpath
# keeps this machine's paths out of the result, -v prints each package as it is compiled.
GO_FLAGS = "-v -trimpath -mod=vendor -tags=providerless"
LINKER_FLAGS = "-s -w -buildid="
# Kubernetes' own way to trim paths (hack/lib/golang.sh), which Go records in the executable, paths and all.
RECORDED_TRIMPATH = "-trimpath=${KUBE_ROOT}"
# Lines that `-v` prints with Debian's 1.20.2, for the progress report only.
PACKAGES_TO_COMPILE = 2120
# The packages, and of each the program.
ETCD = {"etcd-server": "etcd", "etcd-client": "etcdctl"}
PROGRAMS = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def binaries(arch: str) -> Path:
    """Return the cached directory with hyperkube, etcd and build.json, named by version and build recipe."""
    recipe = hashlib.sha256(repr((HYPERKUBE_SOURCE.read_text(), GO_FLAGS, LINKER_FLAGS, ETCD)).encode())
    suffix = f"-{arch}-{recipe.hexdigest()[:12]}"
    built = sorted((cache() / "kubernetes").glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime)
    if built:
        # What was built once stays in use, without asking the archive for news: the lab works offline.
        return built[-1]
    with private_apt(arch) as apt:
        version = source_version(apt)
        entry = f"kubernetes/{version.replace('+', '_')}{suffix}"
        return cached(entry, lambda out: build(out, apt, version, arch))


@contextmanager
def private_apt(arch: str) -> Iterator[Mapping[str, str]]:
    """Give an environment in which apt knows Debian's source packages and those of an architecture too."""
    debian.ensure_packages(*BUILD_PACKAGES)
    home = cache() / "scratch" / f"apt-{os.getpid()}"
    (home / "lists" / "partial").mkdir(parents=True)
    (home / "archives" / "partial").mkdir(parents=True)
    (home / "sources.list").write_text(debian.sources_list("deb") + debian.sources_list("deb-src"))
    (home / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{home}/sources.list";\n'
        'Dir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State::Lists "{home}/lists";\n'
        f'Dir::Cache "{home}";\n'
        f'APT::Architectures {{ "{debian.architecture()}"; "{arch}"; }};\n'
        # Downloads land in a directory of ours, which apt's own user may not be able to reach.
        f'APT::Sandbox::User "{run(["id", "-un"]).stdout.strip()}";\n'
    )
    apt = {**os.environ, "APT_CONFIG": str(home / "apt.conf")}
    try:
        with step("reading the indexes of Debian's source packages"):
            run(["apt-get", "-q", "update"], env=apt)
        yield apt
    finally:
        shutil.rmtree(home, ignore_errors=True)


def source_version(apt: Mapping[str, str]) -> str:
    """Return the version of Debian's kubernetes source package, as `1.20.5+really1.20.2-1.1`."""
    shown = run(["apt-cache", "showsrc", "--only-source", "kubernetes"], env=apt).stdout
    versions = [line.split()[1] for line in shown.splitlines() if line.startswith("Version:")]
    if not versions:
        raise LabError(
            f"Debian's archive for {debian.SUITE} has no source package kubernetes; "
            "set LAB_K3S to a k3s executable"
        )
    newest = versions[0]
    for version in versions[1:]:
        if run(["dpkg", "--compare-versions", version, "gt", newest], check=False).returncode == 0:
            newest = version
    return newest


def build(out: Path, apt: Mapping[str, str], version: str, arch: str) -> None:
    """Make the directory `out` with the programs; what is needed on the way goes into its parent, scratch."""
    work = out.parent
    with step(f"downloading Kubernetes {version} (source) and etcd from Debian"):
        run(
            ["apt-get", "-q", "source", "--download-only", "--only-source", f"kubernetes={version}"],
            env=apt,
            cwd=work,
        )
        run(["apt-get", "-q", "download", *(f"{package}:{arch}" for package in ETCD)], env=apt, cwd=work)
    run(["dpkg-source", "--no-check", "-x", only(work, "*.dsc").name, "source"], cwd=work)
    debs = [only(work, f"{package}_*.deb") for package in ETCD]
    for deb in debs:
        run(["dpkg", "-x", deb, work / "etcd"])
    # The program itself needs the libc of its architecture to tell.
    etcd_version = run(["dpkg-deb", "--field", debs[0], "Version"]).stdout.partition("-")[0]
    tree = work / "source"
    (tree / "cmd" / "hyperkube").mkdir()
    shutil.copy(HYPERKUBE_SOURCE, tree / "cmd" / "hyperkube" / "main.go")
    script = tree / "hack" / "lib" / "golang.sh"
    script.write_text(script.read_text().replace(RECORDED_TRIMPATH, ""))
    compile_tree(tree, work, arch)
    out.mkdir()
    shutil.move(tree / "_output" / "local" / "bin" / "linux" / arch / "hyperkube", out / "hyperkube")
    for program in ETCD.values():
        shutil.move(work / "etcd" / "usr" / "bin" / program, out / program)
    for program in PROGRAMS:
        (work / program).symlink_to(out / "hyperkube")
    emulator = [] if arch == debian.architecture() else [emulator_of(arch)]
    facts = {
        "kubernetes": run([*emulator, work / "kubelet", "--version"]).stdout.split()[-1],
        "debian": version,
        "datastore": f"etcd {etcd_version}",
        "programs": list(PROGRAMS),
        "files": {
            name: hashlib.sha256((out / name).read_bytes()).hexdigest()
            for name in ("hyperkube", *ETCD.values())
        },
    }
    (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n")


def emulator_of(arch: str) -> str:
    """Return QEMU's user mode emulator for an architecture, to ask a program for its version."""
    debian.ensure_packages("qemu-user-static")
    return f"{QEMU[arch]}-static"


def only(directory: Path, pattern: str) -> Path:
    """Return the one file that matches; LabError when there is none or more."""
    found = list(directory.glob(pattern))
    if len(found) != 1:
        raise LabError(f"expected one {pattern} in what apt downloaded, found {len(found)}")
    return found[0]


def compile_tree(tree: Path, work: Path, arch: str) -> None:
    """Compile hyperkube in an unpacked source tree, with progress.

    Raise LabError with the end of the log on failure.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GO", "KUBE_"))},
        "GOCACHE": str(work / "gocache"),
        "GOTMPDIR": str(work),
        "GOPROXY": "off",  # everything is vendored: an attempt to download is a mistake
        "KUBE_BUILD_PLATFORMS": f"linux/{arch}",
        # A static program runs on whatever libc the board has; the second is for foreign architectures, where
        # Kubernetes' script turns cgo on again.
        "CGO_ENABLED": "0",
        "KUBE_STATIC_OVERRIDES": "hyperkube",
        "GOFLAGS": GO_FLAGS,
        "GOLDFLAGS": LINKER_FLAGS,
    }
    say("compiling Kubernetes: about 5 minutes on 2 cores, once")
    make = ["make", "all", "WHAT=cmd/hyperkube"]
    compile_packages(make, "compiling Kubernetes", PACKAGES_TO_COMPILE, env=environment, cwd=tree)
