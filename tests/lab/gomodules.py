# SPDX-License-Identifier: Apache-2.0
"""Programs compiled from Go modules: K3s, the CNI plugins, Kubernetes 1.36, containerd, Helm.

Each directory below `go/` is a Go module of ours that names them, with versions and checksums (go.mod,
go.sum). The Go command fetches and compiles them; the result is kept in the cache by recipe and architecture.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab import compiler
from tools import debian
from tools.cache import cache, cached
from tools.process import ToolError, compile_packages, run, say, step

MODULES = Path(__file__).parent / "go"
GO_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")
SCRATCH_BYTES = 4_000_000_000
"""What compiling Kubernetes takes for objects and the linker, measured with 1.36; given back at the end."""
DEBIANS_GO = (1, 19)
"""The version of Debian 12's package golang-go."""


class NoGoError(ToolError):
    """There is no Go that can compile the module; the message says which one to install."""


@dataclass(frozen=True)
class Recipe:
    """How a module is compiled. A static program runs on each board, with any libc."""

    tags: tuple[str, ...] = ("providerless", "no_btrfs")
    """They leave out what needs C libraries."""
    cgo: bool = False
    linker_flags: tuple[str, ...] = ()
    keep_objects: bool = False
    """Keep Go's build cache, so that the same program with another version is only linked."""

    def flags(self, name: str) -> list[str]:
        """Return the flags of `go build` for the module `name`."""
        linker = ["-s", "-w", "-buildid=", *self.linker_flags, *version_flags(name)]
        if self.cgo:
            linker.append("-extldflags=-static")
        return [*GO_FLAGS, f"-tags={','.join(self.tags)}", f"-ldflags={' '.join(linker)}"]


PLAIN = Recipe()


def programs(name: str, arch: str, recipe: Recipe = PLAIN) -> Path:
    """Return the cached directory with the programs of the module `name`; `arch` is as Debian names it.

    Raises NoGoError when there is no Go that can, ToolError without room or a way to the modules.
    """
    return cached(entry(name, arch, recipe), lambda out: build(MODULES / name, out, arch, recipe))


def is_compiled(name: str, arch: str, recipe: Recipe = PLAIN) -> bool:
    return (cache() / entry(name, arch, recipe)).exists()


def entry(name: str, arch: str, recipe: Recipe = PLAIN) -> str:
    return f"go/{name}-{arch}-{digest(name, recipe)}"


def digest(name: str, recipe: Recipe = PLAIN) -> str:
    """Return what tells one way to build the module from another."""
    parts = [path.read_bytes() for path in sorted((MODULES / name).iterdir())]
    flags = repr((recipe.flags(name), recipe.cgo)).encode()
    return hashlib.sha256(b"\0".join([flags, *parts])).hexdigest()[:12]


def versions(name: str) -> Mapping[str, str]:
    """Return the versions that the module's go.mod names, by module path."""
    text = (MODULES / name / "go.mod").read_text()
    return dict(re.findall(r"^(?:require\s|\t)(\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))


def build(source: Path, out: Path, arch: str, recipe: Recipe = PLAIN) -> None:
    work = out.parent
    ensure_go(source)
    check_room(work)
    tree = work / "module"
    shutil.copytree(source, tree)
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("GOFLAGS", "GOOS", "GOARCH")},
        "CGO_ENABLED": str(int(recipe.cgo)),
        "GOARCH": arch,
        "GOCACHE": str(cache() / "go-build" if recipe.keep_objects else work / "objects"),
        "GOTMPDIR": str(work),
    }
    if recipe.cgo:
        environment["CC"] = compiler.tool("gcc", arch)
    with step(f"fetching the Go modules of {source.name}"):
        what = run(["go", "list", "-e", *named(tree)], env=environment, cwd=tree).stdout.split()
        listing = ["go", "list", "-deps", *recipe.flags(source.name)[:-1], *what]
        packages = run(listing, env=environment, cwd=tree).stdout.count("\n")
    out.mkdir()
    title = f"compiling {packages} Go packages"
    say(f"{title}: up to 10 minutes on 2 cores, once")
    command = ["go", "build", "-v", *recipe.flags(source.name), "-o", f"{out}/", *what]
    compile_packages(command, title, packages, env=environment, cwd=tree)


def named(tree: Path) -> list[str]:
    """Return what to give to `go list` to get the packages of a module's programs."""
    if (tree / "main.go").exists():
        return ["."]
    if (tree / "tools.go").exists():  # for a Go before 1.24, which does not know `tool` in go.mod
        return ["-tags=tools", '-f={{join .Imports "\\n"}}', "."]
    return ["tool"]


def version_flags(name: str) -> list[str]:
    """Return the linker's flags by which the programs know their versions, as in their own makefiles."""
    known = versions(name)
    flags = []
    if name.startswith("kubernetes-"):
        kubernetes = known["k8s.io/kubernetes"]
        major, minor = kubernetes.removeprefix("v").split(".")[:2]
        facts = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += [f"-X {package}.{key}={value}" for key, value in facts.items()]
    if containerd := known.get("github.com/containerd/containerd/v2"):
        flags.append(f"-X github.com/containerd/containerd/v2/version.Version={containerd}")
    if helm := known.get("helm.sh/helm/v4"):
        flags.append(f"-X helm.sh/helm/v4/internal/version.version={helm}")
    return flags


def ensure_go(source: Path) -> None:
    """Raise NoGoError unless there is a Go that is new enough for the module; install Debian's if that is."""
    wanted = re.findall(r"^go (\S+)$", (source / "go.mod").read_text(), re.MULTILINE)[0]
    way_out = f"install Go {wanted} or newer, which compiles {source.name}"
    if shutil.which("go") is None:
        if numbers(wanted) > DEBIANS_GO:
            raise NoGoError(f"there is no Go here: {way_out}")
        debian.ensure_packages("golang-go")
    found = run(["go", "env", "GOVERSION"]).stdout.strip().removeprefix("go")
    # With GOTOOLCHAIN=auto the command fetches the version that go.mod wants.
    own = run(["go", "env", "GOTOOLCHAIN"]).stdout.strip() in ("local", "")
    if own and numbers(found) < numbers(wanted):
        raise NoGoError(f"Go {found} is too old: {way_out}, or set GOTOOLCHAIN=auto")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def check_room(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < SCRATCH_BYTES:
        raise ToolError(
            f"{directory} has {free / 1e9:.1f} GB free and compiling takes {SCRATCH_BYTES / 1e9:.0f}: "
            "make room there, or set JETSON_K3S_CACHE to a larger disk"
        )
