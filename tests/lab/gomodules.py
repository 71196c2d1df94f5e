# SPDX-License-Identifier: Apache-2.0
"""Programs compiled from Go modules: K3s, the CNI plugins, Kubernetes with etcd, Helm.

Each directory below `go/` is a Go module of ours that names them, with versions and checksums (go.mod,
go.sum). The Go command fetches and compiles them; the result is kept in the cache by recipe and architecture.

A go.sum has the checksums of the modules that are compiled, and no others: `go list -deps` adds them.
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
    """Packages of a module, and how they are compiled. A static program runs on each board, with any libc."""

    name: str
    module: str
    packages: tuple[str, ...] = (".",)
    tags: tuple[str, ...] = ("providerless", "no_btrfs")
    """They leave out what needs C libraries."""
    cgo: bool = False
    linker_flags: tuple[str, ...] = ()
    keep_objects: bool = False
    """Keep Go's build cache, so that the same program with another version is only linked."""

    @property
    def source(self) -> Path:
        return MODULES / self.module

    def flags(self) -> list[str]:
        """Return the flags of `go build`."""
        linker = ["-s", "-w", "-buildid=", *self.linker_flags]
        if self.cgo:
            linker.append("-extldflags=-static")
        return [*GO_FLAGS, f"-tags={','.join(self.tags)}", f"-ldflags={' '.join(linker)}"]

    def digest(self) -> str:
        """Return what tells this way to compile from another."""
        parts = [path.read_bytes() for path in sorted(self.source.iterdir())]
        how = repr((self.packages, self.flags(), self.cgo)).encode()
        return hashlib.sha256(b"\0".join([how, *parts])).hexdigest()[:12]

    def entry(self, arch: str) -> str:
        return f"go/{self.name}-{arch}-{self.digest()}"


def programs(recipe: Recipe, arch: str) -> Path:
    """Return the cached directory with the programs of a recipe; `arch` is as Debian names it.

    Raises NoGoError when there is no Go that can, ToolError without disk space or access to the modules.
    """
    return cached(recipe.entry(arch), lambda out: build(recipe, out, arch))


def is_compiled(recipe: Recipe, arch: str) -> bool:
    return (cache() / recipe.entry(arch)).exists()


def versions(module: str) -> Mapping[str, str]:
    """Return the versions that the module's go.mod names, by module path."""
    text = (MODULES / module / "go.mod").read_text()
    return dict(re.findall(r"^(?:require\s|\t)(\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))


def build(recipe: Recipe, out: Path, arch: str) -> None:
    work = out.parent
    ensure_go(recipe.source)
    check_room(work)
    tree = work / "module"
    shutil.copytree(recipe.source, tree)
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("GOFLAGS", "GOOS", "GOARCH")},
        "CGO_ENABLED": str(int(recipe.cgo)),
        "GOARCH": arch,
        "GOCACHE": str(cache() / "go-build" if recipe.keep_objects else work / "objects"),
        "GOTMPDIR": str(work),
    }
    if recipe.cgo:
        environment["CC"] = compiler.tool("gcc", arch)
    with step(f"fetching the Go modules of {recipe.name}"):
        listing = ["go", "list", "-deps", *recipe.flags()[:-1], *recipe.packages]
        packages = run(listing, env=environment, cwd=tree).stdout.count("\n")
    out.mkdir()
    title = f"compiling {packages} Go packages"
    say(f"{title}: up to 10 minutes on 2 cores, once")
    command = ["go", "build", "-v", *recipe.flags(), "-o", f"{out}/", *recipe.packages]
    compile_packages(command, title, packages, env=environment, cwd=tree)


KUBERNETES = "kubernetes-1.36"
"""The module of the lab's newest Kubernetes, and of what goes with it."""


def kubernetes_flags() -> tuple[str, ...]:
    """Return the linker's flags by which Kubernetes knows its version, as in its own makefiles."""
    kubernetes = versions(KUBERNETES)["k8s.io/kubernetes"]
    major, minor = kubernetes.removeprefix("v").split(".")[:2]
    facts = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return tuple(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in facts.items()
    )


HYPERKUBE = Recipe("hyperkube", KUBERNETES, linker_flags=kubernetes_flags())
HELM = Recipe(
    "helm",
    KUBERNETES,
    ("helm.sh/helm/v4/cmd/helm",),
    linker_flags=(f"-X helm.sh/helm/v4/internal/version.version={versions(KUBERNETES)['helm.sh/helm/v4']}",),
)


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
            "free some space there, or set JETSON_K3S_CACHE to a larger disk"
        )
