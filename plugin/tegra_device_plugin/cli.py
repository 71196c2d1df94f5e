# SPDX-License-Identifier: Apache-2.0
"""The command line: what can be said, which command that is, and how its end is told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, complain, say
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.signals import Signals

# They have a life of their own, which signals end.
_STAYING = tuple(f"tegra_device_plugin.commands.{name}" for name in ("run", "agent", "dra"))
# Of the options of `run`, those that `agent` has, too.
_AGENT_OPTIONS = ("host_root", "metrics_address", "log_format", "log_level")
# And those that `dra` has, besides its own.
_DRA_OPTIONS = (*_AGENT_OPTIONS, "gpu_limit_dir", "gpu_limit_library")


def main(arguments: Sequence[str] | None = None, signals: Signals | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed or no Tegra GPU, 2 bad usage or settings.

    `signals` are taken since the start of the process; only those that stay keep them.
    """
    options = _parser().parse_args(arguments)
    stays = options.command in _STAYING
    if signals and not stays:
        signals.release()
    if not options.command.endswith(".dra"):
        _without_tls()
    try:
        main_of = import_module(options.command).main
        code: int = main_of(options, signals or Signals()) if stays else main_of(options)
    except config.ConfigError as error:
        for problem in error.problems:
            complain(problem)
        return EXIT_USAGE
    except OSError as error:
        complain(str(error))
        return EXIT_FAILED
    except ExceptionGroup as failures:
        expected, unexpected = failures.split(OSError)
        if unexpected or not expected:
            raise
        for failure in _leaves(expected):
            complain(str(failure))
        return EXIT_FAILED
    return code


def _without_tls() -> None:
    """Keep asyncio from loading OpenSSL: 3 MB, which only the API server's client has a use for."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None: an import of it fails


def _leaves(error: Exception) -> Iterator[Exception]:
    """What a group of groups holds."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tegra-device-plugin",
        description="Kubernetes device plugin for the integrated GPU of NVIDIA Jetson boards",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and git revision, and end")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="serve the GPU to the kubelet",
        epilog="Every option is also an environment variable and a key of the file's flags.plugin; "
        "the flag wins over the variable, and the variable over the file.",
    )
    _add_config(run, "settings in NVIDIA's `version: v1` format; CONFIG_FILE")
    for option in config.OPTIONS:
        run.add_argument(option.flag, metavar=option.metavar, help=f"{option.help}; {option.variable}")
    run.set_defaults(command="tegra_device_plugin.commands.run")

    _add_agent(commands)
    _add_dra(commands)

    detect = commands.add_parser("detect", help="say which board and GPU this is, and how that is known")
    _add_host_root(detect)
    detect.add_argument("--output", choices=("text", "json"), default="text")
    detect.set_defaults(command="tegra_device_plugin.commands.detect")

    labels = commands.add_parser("labels", help="print the node labels that describe the GPU")
    _add_host_root(labels)
    _add_config(labels, "settings of `run`, for the labels on sharing")
    labels.add_argument(
        "--qos-policy",
        choices=("best-effort", "burst-share"),
        help="that of `agent` here; burst-share gives a label that says if this board's driver can do it",
    )
    labels.add_argument(
        "--output",
        choices=("text", "json", "nfd"),
        default="text",
        help="nfd: for a file in NFD's features.d",
    )
    labels.add_argument(
        "--output-file", type=Path, metavar="FILE", help="write there in one step (default: print)"
    )
    labels.set_defaults(command="tegra_device_plugin.commands.labels")

    holders = commands.add_parser(
        "holders", help="say what each container of this node has of the GPU, and what is free"
    )
    _add_pod_resources(holders)
    _add_config(holders, "settings of `run`, for the shares; CONFIG_FILE")
    holders.add_argument(
        "--host-root",
        type=Path,
        metavar="DIR",
        help="also say how much GPU memory the containers' processes hold; where the host's files are seen",
    )
    holders.add_argument("--output", choices=("text", "json"), default="text")
    holders.set_defaults(command="tegra_device_plugin.commands.holders")

    allocate = commands.add_parser(
        "allocate", help="allocate GPU memory as a CUDA program, to see how far this container may go"
    )
    allocate.add_argument("mib", type=_positive, metavar="MIB", help="how much, in MiB")
    allocate.add_argument("--hold", action="store_true", help="keep it until SIGTERM or SIGINT")
    allocate.set_defaults(command="tegra_device_plugin.commands.allocate")

    compute = commands.add_parser(
        "compute", help="run a CUDA kernel, check its result, and list the device nodes that are seen"
    )
    compute.add_argument("--hold", action="store_true", help="then wait for SIGTERM or SIGINT")
    compute.set_defaults(command="tegra_device_plugin.commands.compute")

    device = commands.add_parser(
        "koordinator-device", help="print Koordinator's Device of this node, of a GPU sold by that preset"
    )
    device.add_argument("node", metavar="NODE", help="the node's name")
    _add_host_root(device)
    _add_config(device, "settings of `run`")
    device.set_defaults(command="tegra_device_plugin.commands.koordinator_device")

    simulate = commands.add_parser(
        "simulate",
        help="let a node of a cluster without boards advertise a GPU that it does not have",
        epilog="For trying manifests: the scheduler counts what is simulated, and containers get nothing for "
        "it. It uses kubectl and its current context, and is refused beside a real device plugin. A kubelet "
        "that starts again forgets it.",
    )
    simulate.add_argument("node", metavar="NODE", help="the node's name, as kubectl has it")
    _add_config(simulate, "settings of `run`: what to advertise (default: 1 nvidia.com/gpu); CONFIG_FILE")
    simulate.add_argument("--remove", action="store_true", help="take back what the node simulates")
    simulate.set_defaults(command="tegra_device_plugin.commands.simulate")

    files = commands.add_parser("config", help="look at configuration files")
    check = files.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "check", help="say what is wrong with a configuration file, or what it means"
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(command="tegra_device_plugin.commands.config_check")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, not {text!r}")
    return int(text)


class _Version(argparse.Action):
    """Unlike argparse's own, it finds the version out only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tegra_device_plugin import version  # noqa: PLC0415 - see the class

        say(f"{parser.prog} {version.package_version()} (revision {version.git_revision()})")
        parser.exit(EXIT_OK)


def _add_agent(commands: Any) -> None:
    agent = commands.add_parser(
        "agent",
        help="divide the GPU's time among pods by weights, and watch how much of its memory each holds",
        epilog="It reads the same file and environment as `run`. It needs the host's /proc, /sys with "
        "debugfs, /dev and /var/log/pods below the host root; for evict the capability KILL and the host's "
        "pids; for burst-share a privileged container.",
    )
    _add_config(agent, "settings of `run`, for what shares are sold as; CONFIG_FILE")
    for option in config.OPTIONS:
        if option.field in _AGENT_OPTIONS:
            about = "serve /metrics and /healthz there" if "metrics" in option.field else option.help
            agent.add_argument(option.flag, metavar=option.metavar, help=f"{about}; {option.variable}")
    agent.add_argument(
        "--mode",
        choices=("report", "evict"),
        default="report",
        help="what happens to a pod that holds more GPU memory than its share: a line in the log and a "
        "metric, or also the end of its GPU processes (default: report)",
    )
    agent.add_argument(
        "--qos-policy",
        choices=("best-effort", "fixed-share", "burst-share"),
        default="best-effort",
        help="best-effort: the driver's own time slices; burst-share: time slices by the pods' gpu-core; "
        "fixed-share is refused, as the driver has no ceiling (default: best-effort)",
    )
    _add_pod_resources(agent)
    agent.set_defaults(command="tegra_device_plugin.commands.agent")


def _add_dra(commands: Any) -> None:
    dra = commands.add_parser(
        "dra",
        help="serve the GPU by Dynamic Resource Allocation, instead of `run`",
        epilog="Every option is also an environment variable, and but for the last two a key of the file's "
        "flags.plugin; the flag wins over the variable, and the variable over the file. It needs Kubernetes "
        "1.34, and the API server: by the pod's service account, or a kubeconfig.",
    )
    _add_config(dra, "settings in NVIDIA's `version: v1` format, with sharing.dra; CONFIG_FILE")
    own = [option for option in config.OPTIONS if option.field in _DRA_OPTIONS]
    for option in (*own, *config.DRA_OPTIONS):
        dra.add_argument(option.flag, metavar=option.metavar, help=f"{option.help}; {option.variable}")
    dra.set_defaults(command="tegra_device_plugin.commands.dra")


def _add_pod_resources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pod-resources",
        type=Path,
        metavar="SOCKET",
        help="the kubelet's socket (default: /var/lib/kubelet/pod-resources/kubelet.sock)",
    )


def _add_host_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-root", type=Path, default=Path("/"), metavar="DIR", help="where the host's files are seen"
    )


def _add_config(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)
