# SPDX-License-Identifier: Apache-2.0
"""The real K3s, compiled from its own sources, which come as Go modules.

Inside it is K3s' server and agent with Kubernetes, cri-dockerd, flannel and kine; around that K3s' own
self-extracting executable, as in a release. What a release adds from elsewhere and the lab leaves out:
K3s' root file system of host tools, and runc (a board has Debian's).

`python -m tests.lab.k3s` builds one and prints where it is.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from images.arm64 import compiler
from tests.lab import debian, gomodules
from tests.lab.paths import cache, cached
from tests.lab.process import LabError, compile_packages, print_path, run, say, step


@dataclass(frozen=True)
class Release:
    """One K3s: its version, the Go module of ours that names its sources, and what its executable has inside.

    A version with a commit is how K3s itself calls what is no release (its scripts/version.sh).
    """

    version: str
    source: str
    commit: str
    containerd: bool = False
    """Whether containerd is a part of the executable, as in 1.26 and newer."""
    commands: tuple[str, ...] = ()
    """Commands beyond those that all have."""
    toolchain: str = "local"
    """The Go that compiles it: K3s' own where one from 1.21 on ends it at its start, for its flags."""


_RELEASES = (
    Release("v1.25.2+k3s-934d0136", "k3s-1.25.2", "934d01361402"),
    Release("v1.25.4+k3s1", "k3s-1.25.4", "0dc63334c0db"),
    Release(
        "v1.28.2+k3s1",
        "k3s-1.28.2",
        "6330a5b49cfe",
        containerd=True,
        commands=("k3s-token",),
        toolchain="go1.20.8",
    ),
)
RELEASES: Mapping[str, Release] = {release.version: release for release in _RELEASES}
NEWEST = _RELEASES[-1].version
PACKAGE = "github.com/k3s-io/k3s"
# Modules that nothing compiled here needs, and that cannot be had.
UNUSED = (
    "github.com/juju/errors",
    "k8s.io/node-api", "k8s.io/sample-apiserver", "k8s.io/sample-cli-plugin", "k8s.io/sample-controller",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program of K3s: its package, Go's build tags, and whether it has parts in C."""

    package: str
    tags: tuple[str, ...]
    cgo: bool


# K3s' own tags (scripts/build), without those that need more C libraries than libc: seccomp, libsqlite3.
INSIDE = Program(
    "./cmd/server",
    (
        "apparmor", "netgo", "osusergo", "providerless", "urfave_cli_no_docs", "static_build",
        "sqlite_omit_load_extension",
    ),
    cgo=True,
)  # fmt: skip
SHIM = Program(
    "github.com/containerd/containerd/cmd/containerd-shim-runc-v2", ("netgo", "osusergo"), cgo=False
)
OUTSIDE = Program("./cmd/k3s", ("urfave_cli_no_docs",), cgo=False)
# What the executable inside is called by, as K3s' scripts/package-cli has it.
COMMANDS = (
    "crictl", "ctr", "kubectl", "k3s-agent", "k3s-server",
    "k3s-etcd-snapshot", "k3s-secrets-encrypt", "k3s-certificate", "k3s-completion",
)  # fmt: skip
CNI = ("cni", "cni-flannel")
# Where a virtual board differs from a real one: with cgroup v1 all of them share a tree, where each kubelet
# would remove the others' pods.
BOARD_SETTINGS = "kubelet-arg+: [cgroups-per-qos=false, enforce-node-allocatable=]\n"
# By this variable K3s has its containerd ask systemd for cgroups, which needs those of QoS classes.
UNIT_SETTINGS = "[Service]\nUnsetEnvironment=INVOCATION_ID\n"
# What K3s runs from images that the lab does not have; network policies need ipset.
SERVER_SETTINGS = {
    "disable": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
    "disable-helm-controller": True,
    "disable-network-policy": True,
}
# K3s embeds its archive by a generated file; this one keeps the contract of that.
EMBED = """package data

import _ "embed"

//go:embed {name}
var archive []byte

func Asset(string) ([]byte, error) {{ return archive, nil }}

func AssetNames() []string {{ return []string{{"{name}"}} }}
"""


def chosen(suffix: str = "", minors: int = 0) -> Path | None:
    """Return the real K3s that `LAB_K3S` names, by a version of RELEASES or by a file; None without one.

    The suffix and `minors` are those of k3s(). Raises LabError when it is neither, cannot be built, or is a
    file and another version is wanted.
    """
    given = os.environ.get("LAB_K3S", "")
    if not given:
        return None
    if given in RELEASES:
        return k3s(given, suffix=suffix, minors=minors)
    path = Path(given).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise LabError(
            f"LAB_K3S={given} is neither an executable file nor one of {', '.join(RELEASES)}; "
            "unset it to use the stand-in"
        )
    if suffix or minors:
        raise LabError(
            f"LAB_K3S={given} is one file, and a second version is wanted here; "
            f"name one of {', '.join(RELEASES)}"
        )
    return path.resolve()


def is_chosen() -> bool:
    """Say whether `LAB_K3S` names a real K3s."""
    return bool(os.environ.get("LAB_K3S"))


def k3s(version: str = NEWEST, arch: str | None = None, suffix: str = "", minors: int = 0) -> Path:
    """Return the executable from the cache, built when it is absent; `arch` is as Debian names it.

    For tests of upgrades the same program calls itself by a SIMULATED version: `suffix` is appended to its
    own, and `minors` added to the minor one.
    Raises LabError when it cannot be built, NoGoError without Go.
    """
    release = RELEASES[version]
    release = replace(release, version=named_version(release, suffix, minors))
    arch = arch or debian.architecture()
    parts = (release, INSIDE, SHIM, OUTSIDE, COMMANDS, EMBED, version_flags(release))
    modules = [gomodules.recipe(name) for name in (release.source, *CNI)]
    recipe = hashlib.sha256(repr((parts, modules)).encode()).hexdigest()[:12]
    name = f"k3s/{release.version.replace('+', '-')}-{arch}-{recipe}"
    return cached(name, lambda out: build(release, arch, out)) / "k3s"


def named_version(release: Release, suffix: str = "", minors: int = 0) -> str:
    """Return the version that the program names: SIMULATED as far as `suffix` and `minors` go."""
    major, minor, patch = release.version.split(".", 2)
    return f"{major}.{int(minor) + minors}.{patch}{suffix}"


def build(release: Release, arch: str, out: Path) -> None:
    """Compile and pack one release into the directory `out`; its parent is scratch."""
    work = out.parent
    gomodules.check_go(gomodules.MODULES / release.source)
    gomodules.check_room(work)
    plugins = [path for name in CNI for path in sorted(gomodules.programs(name, arch).iterdir())]
    tree = work / "source"
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("GOFLAGS", "GOOS")},
        "GOARCH": arch,
        # Kept: another version, or the same under another name, compiles only what differs.
        "GOCACHE": str(cache() / "go-build"),
        "GOTMPDIR": str(work),
        "CC": compiler.tool("gcc", arch),
    }
    with step(f"fetching the sources of K3s {release.version}"):
        fetch(release, tree, environment)
    bin_directory = work / "root" / "bin"
    bin_directory.mkdir(parents=True)
    (work / "root" / "etc").mkdir()
    say("compiling K3s: up to 15 minutes on 2 cores, once")
    inside, commands = INSIDE, (*COMMANDS, *release.commands)
    if release.containerd:
        inside, commands = replace(INSIDE, tags=(*INSIDE.tags, "ctrd")), (*commands, "containerd")
        go_build(release, SHIM, bin_directory / "containerd-shim-runc-v2", tree, environment)
    go_build(release, inside, bin_directory / "k3s", tree, environment)
    for path in plugins:
        shutil.copy(path, bin_directory)
    shutil.copy(tree / "contrib/util/check-config.sh", bin_directory / "check-config")
    with step("packing K3s"):
        for name in commands:
            (bin_directory / name).symlink_to("k3s")
        embed(work / "root", tree / "pkg/data")
    out.mkdir()
    go_build(release, OUTSIDE, out / "k3s", tree, environment)


def fetch(release: Release, tree: Path, environment: Mapping[str, str]) -> None:
    """Put the sources into `tree`, with a go.mod whose modules can all be had.

    Its go.sum has their checksums, and our own has that of K3s.
    """
    ours = tree.with_name("module")
    shutil.copytree(gomodules.MODULES / release.source, ours)
    # A package without dependencies brings the module, and Go compares it with our go.sum.
    command = ["go", "list", "-mod=readonly", "-f={{.Module.Dir}}", f"{PACKAGE}/pkg/version"]
    found = run(command, env=environment, cwd=ours).stdout.strip()
    shutil.copytree(found, tree)
    # Go makes its cache read-only.
    run(["chmod", "--recursive", "u+w", tree])
    stated = json.loads(run(["go", "mod", "edit", "-json"], env=environment, cwd=ours).stdout)
    edits = [
        f"-replace={one['Old']['Path']}={one['New']['Path']}@{one['New']['Version']}"
        for one in stated["Replace"]
    ]
    edits += [f"-dropreplace={name}" for name in UNUSED]
    run(["go", "mod", "edit", *edits], env=environment, cwd=tree)
    with (tree / "go.sum").open("a") as sums:
        sums.write((ours / "go.sum").read_text())


def go_build(
    release: Release, program: Program, out: Path, tree: Path, environment: Mapping[str, str]
) -> None:
    """Compile one of K3s' programs from the sources in `tree` into the file `out`, static."""
    environment = {
        **environment, "CGO_ENABLED": str(int(program.cgo)), "GOTOOLCHAIN": release.toolchain,
    }  # fmt: skip
    flags = ("-mod=readonly", f"-tags={','.join(program.tags)}")
    listed = run(["go", "list", "-deps", *flags, program.package], env=environment, cwd=tree).stdout
    packages = listed.count("\n")
    linker = ("-s", "-w", "-buildid=", "-extldflags=-static", *version_flags(release))
    command = [
        *("go", "build", "-v", "-trimpath", "-buildvcs=false", *flags, f"-ldflags={' '.join(linker)}"),
        *("-o", str(out), program.package),
    ]
    title = f"compiling {packages} Go packages of K3s"
    compile_packages(command, title, packages, env=environment, cwd=tree)


def version_flags(release: Release) -> list[str]:
    """Return the linker's flags by which the programs know their version, as in K3s' scripts/build."""
    facts = {
        f"{PACKAGE}/pkg/version.Version": release.version,
        f"{PACKAGE}/pkg/version.GitCommit": release.commit[:8],
    }
    for package in ("k8s.io/client-go/pkg/version", "k8s.io/component-base/version"):
        facts |= {
            f"{package}.gitVersion": release.version,
            f"{package}.gitCommit": release.commit,
            f"{package}.gitTreeState": "clean",
        }
    return [f"-X {name}={value}" for name, value in facts.items()]


def embed(root: Path, package: Path) -> None:
    """Pack what the executable unpacks at its first start, and have the Go package embed it."""
    bin_directory = root / "bin"
    entries = sorted(bin_directory.iterdir())
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in entries
        if not path.is_symlink()
    ]
    links = [f"{path.name} {path.readlink()}\n" for path in entries if path.is_symlink()]
    (bin_directory / ".sha256sums").write_text("".join(sums))
    (bin_directory / ".links").write_text("".join(links))
    debian.ensure_packages("zstd")
    packed = root.with_name("data.tar")
    with tarfile.open(packed, "w") as archive:
        for name in ("bin", "etc"):
            archive.add(root / name, name, filter=stamped)
    # K3s' window, not its level: that takes a minute and saves a tenth.
    run(["zstd", "--quiet", "-6", "--long=25", "--rm", packed])
    packed = packed.with_suffix(".tar.zst")
    # K3s names the directory that it unpacks to by this.
    name = f"{hashlib.sha256(packed.read_bytes()).hexdigest()}.tar.zst"
    packed.rename(package / name)
    (package / "zz_generated_bindata.go").write_text(EMBED.format(name=name))


def stamped(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make an entry the same whoever packs it, and whenever."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    return entry


def main() -> int:
    """Build what is absent and print the executable's path."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.k3s", description="Build K3s from its own sources."
    )
    parser.add_argument("--version", choices=RELEASES, default=NEWEST, help=f"which one (default: {NEWEST})")
    parser.add_argument(
        "--arch", choices=("amd64", "arm64"), help="architecture of the boards (default: this machine's)"
    )
    arguments = parser.parse_args()
    return print_path(lambda: k3s(arguments.version, arguments.arch))


if __name__ == "__main__":
    sys.exit(main())
