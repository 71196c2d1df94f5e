# SPDX-License-Identifier: Apache-2.0
"""Programs compiled from Go modules: K3s, CNI plugins, Kubernetes, Helm, kubeconform, NVIDIA's plugin.

Each directory below `go/` is a Go module of ours that names them, with versions and checksums (go.mod,
go.sum). The Go command fetches and compiles them; the result is kept in the cache by recipe and architecture.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.lab import compiler
from tools import debian
from tools.cache import cache, cached
from tools.process import ToolError, compile_packages, run, say, step

MODULES = Path(__file__).parent / "go"
SCRATCH_BYTES = 4_000_000_000
"""What compiling Kubernetes takes for objects and the linker, measured with 1.36; given back at the end."""
DEBIANS_GO = (1, 19)
"""The version of Debian 12's package golang-go."""


class NoGoError(ToolError):
    """There is no Go that can compile the module; the message says which one to install."""


COMPILERS_GOGC = "400"
"""For the compiler, which is a Go program: it takes a fifth less time than with Go's default of 100."""


@dataclass(frozen=True)
class Recipe:
    """Programs of a module, and how they are compiled: statically, to run on each board, with any libc."""

    name: str
    """The module's directory below `go/`."""
    packages: tuple[str, ...] = (".",)
    tags: tuple[str, ...] = ("providerless", "no_btrfs")
    """They leave out what needs C libraries."""
    cgo: bool = False
    linker_flags: tuple[str, ...] = ()
    keep_objects: bool = False
    """Keep Go's build cache, so that the same program with another version is only linked."""

    def flags(self) -> list[str]:
        """Return the flags of `go build`."""
        linker = ["-s", "-w", "-buildid=", *self.linker_flags]
        if self.cgo:
            linker.append("-extldflags=-static")
        return [
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            f"-tags={','.join(self.tags)}",
            f"-ldflags={' '.join(linker)}",
        ]

    def digest(self) -> str:
        """Return what tells this way to compile from another."""
        module = [path.read_text() for path in sorted((MODULES / self.name).iterdir())]
        return hashlib.sha256(repr((astuple(self), self.flags(), module)).encode()).hexdigest()[:12]

    def entry(self, arch: str) -> str:
        return f"go/{self.name}-{arch}-{self.digest()}"


def programs(recipe: Recipe, arch: str) -> Path:
    """Return the cached directory with the programs of a recipe; `arch` is as Debian names it.

    Raises NoGoError when there is no Go that can, ToolError without disk space or access to the modules.
    """
    return cached(recipe.entry(arch), lambda out: build(recipe, out, arch))


def is_compiled(recipe: Recipe, arch: str) -> bool:
    return (cache() / recipe.entry(arch)).exists()


def required(name: str, path: str) -> str:
    """Return the version of another module that the module `name` requires."""
    (found,) = re.findall(rf"^(?:require\s|\t){re.escape(path)} (v\S+)", go_mod(name), re.MULTILINE)
    return str(found)


def imports(name: str) -> tuple[str, ...]:
    """Return the programs that a module's tools.go has, for a Go that is too old for `tool` in go.mod."""
    return tuple(re.findall(r'^\t_ "(\S+)"', (MODULES / name / "tools.go").read_text(), re.MULTILINE))


def go_mod(name: str) -> str:
    return (MODULES / name / "go.mod").read_text()


def build(recipe: Recipe, out: Path, arch: str) -> None:
    work = out.parent
    ensure_go(recipe.name)
    check_room(work)
    environment = {
        "GOGC": COMPILERS_GOGC,
        **{key: value for key, value in os.environ.items() if key not in ("GOFLAGS", "GOOS", "GOARCH")},
        "CGO_ENABLED": str(int(recipe.cgo)),
        "GOARCH": arch,
        "GOCACHE": str(cache() / "go-build" if recipe.keep_objects else work / "objects"),
        "GOTMPDIR": str(work),
        "GOWORK": "off",
    }
    if recipe.cgo:
        environment["CC"] = compiler.tool("gcc", arch)
    module = MODULES / recipe.name
    with step(f"fetching the Go modules of {recipe.name}"):
        listing = ["go", "list", "-deps", *recipe.flags()[:-1], *recipe.packages]
        packages = run(listing, env=environment, cwd=module).stdout.count("\n")
    out.mkdir()
    title = f"compiling {packages} Go packages"
    say(f"{title}: up to 10 minutes on 2 cores, once")
    command = ["go", "build", "-v", *recipe.flags(), "-o", f"{out}/", *recipe.packages]
    compile_packages(command, title, packages, env=environment, cwd=module)


KUBERNETES = required("hyperkube", "k8s.io/kubernetes")
"""The lab's newest Kubernetes."""


def kubernetes_flags() -> tuple[str, ...]:
    """Return the linker's flags by which Kubernetes knows its version, as in its own makefiles."""
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    facts = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return tuple(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in facts.items()
    )


HYPERKUBE = Recipe("hyperkube", linker_flags=kubernetes_flags())
HELM = Recipe(
    "helm",
    ("tool",),
    linker_flags=(f"-X helm.sh/helm/v4/internal/version.version={required('helm', 'helm.sh/helm/v4')}",),
)
KUBECONFORM = Recipe("kubeconform", ("tool",))


def sources(name: str, path: str) -> Path:
    """Return the directory with the files of another module that the module `name` requires.

    Raises NoGoError when there is no Go that can fetch it, ToolError without access to the modules.
    """
    ensure_go(name)
    command = ["go", "mod", "download", "-json", path]
    return Path(
        json.loads(run(command, env={**os.environ, "GOWORK": "off"}, cwd=MODULES / name).stdout)["Dir"]
    )


def ensure_go(name: str) -> None:
    """Raise NoGoError unless there is a Go that is new enough for the module; install Debian's if that is."""
    wanted = re.findall(r"^go (\S+)$", go_mod(name), re.MULTILINE)[0]
    way_out = f"install Go {wanted} or newer, which compiles {name}"
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
