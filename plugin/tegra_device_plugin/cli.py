# SPDX-License-Identifier: Apache-2.0
"""Kubernetes device plugin for the integrated GPU of NVIDIA Jetson boards.

Each command imports what it needs itself: `detect` does not need gRPC, and `run` registers earlier.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tegra_device_plugin.config import settings as config
from tegra_device_plugin.signals import Signals

if TYPE_CHECKING:
    from tegra_device_plugin.config.watch import ConfigWatch

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

# Of the options of `run`, those that `agent` has, too.
_AGENT_OPTIONS = ("host_root", "metrics_address", "log_format", "log_level")


def main(arguments: Sequence[str] | None = None, signals: Signals | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed or no Tegra GPU, 2 bad usage or settings.

    `signals` are taken since the start of the process; only `run` and `agent` keep them.
    """
    options = _parser().parse_args(arguments)
    stays = options.command in (_run, _agent)
    if signals and not stays:
        signals.release()
    try:
        code: int = options.command(options, signals) if stays else options.command(options)
    except config.ConfigError as error:
        for problem in error.problems:
            _complain(problem)
        return EXIT_USAGE
    except OSError as error:
        _complain(str(error))
        return EXIT_FAILED
    except ExceptionGroup as failures:
        expected, unexpected = failures.split(OSError)
        if unexpected or not expected:
            raise
        for failure in _leaves(expected):
            _complain(str(failure))
        return EXIT_FAILED
    return code


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
    run.set_defaults(command=_run)

    _add_agent(commands)

    detect = commands.add_parser("detect", help="say which board and GPU this is, and how that is known")
    _add_host_root(detect)
    detect.add_argument("--output", choices=("text", "json"), default="text")
    detect.set_defaults(command=_detect)

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
    labels.set_defaults(command=_labels)

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
    holders.set_defaults(command=_holders)

    allocate = commands.add_parser(
        "allocate", help="allocate GPU memory as a CUDA program, to see how far this container may go"
    )
    allocate.add_argument("mib", type=_positive, metavar="MIB", help="how much, in MiB")
    allocate.add_argument("--hold", action="store_true", help="keep it until SIGTERM or SIGINT")
    allocate.set_defaults(command=_allocate)

    compute = commands.add_parser(
        "compute", help="run a CUDA kernel, check its result, and list the device nodes that are seen"
    )
    compute.add_argument("--hold", action="store_true", help="then wait for SIGTERM or SIGINT")
    compute.set_defaults(command=_compute)

    device = commands.add_parser(
        "koordinator-device", help="print Koordinator's Device of this node, of a GPU sold by that preset"
    )
    device.add_argument("node", metavar="NODE", help="the node's name")
    _add_host_root(device)
    _add_config(device, "settings of `run`")
    device.set_defaults(command=_koordinator_device)

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
    simulate.set_defaults(command=_simulate)

    files = commands.add_parser("config", help="look at configuration files")
    check = files.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "check", help="say what is wrong with a configuration file, or what it means"
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(command=_config_check)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, not {text!r}")
    return int(text)


class _Version(argparse.Action):
    """Unlike argparse's own, it finds the version out only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tegra_device_plugin import version

        _say(f"{parser.prog} {version.package_version()} (revision {version.git_revision()})")
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
    agent.set_defaults(command=_agent)


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


def _config_file(options: argparse.Namespace) -> Path | None:
    named: Path | None = options.config
    variable = os.environ.get("CONFIG_FILE")
    return named or (Path(variable) if variable else None)


def _run(options: argparse.Namespace, signals: Signals | None) -> int:
    import asyncio

    from tegra_device_plugin.daemon import Daemon

    asyncio.run(Daemon(_configuration(options), signals or Signals()).run())
    return EXIT_OK


def _agent(options: argparse.Namespace, signals: Signals | None) -> int:
    import asyncio

    from tegra_device_plugin.agent.daemon import Agent, Choice
    from tegra_device_plugin.agent.nvgpu import Linux
    from tegra_device_plugin.kubelet import holders

    choice = Choice(options.mode, options.qos_policy, options.pod_resources or holders.SOCKET)
    asyncio.run(Agent(_configuration(options), choice, signals or Signals(), Linux()).run())
    return EXIT_OK


def _configuration(options: argparse.Namespace) -> ConfigWatch:
    """The settings of a command that stays: flag over environment over file."""
    from tegra_device_plugin.config.watch import ConfigWatch

    file = _config_file(options)
    flags = {option.field: getattr(options, option.field, None) for option in config.OPTIONS}
    return ConfigWatch(file, lambda: config.load(file, os.environ, flags)[0])


def _detect(options: argparse.Namespace) -> int:
    from tegra_device_plugin.board.detection import detect
    from tegra_device_plugin.telemetry import jtop

    detection = detect(options.host_root)
    facts = detection.as_dict()
    if telemetry := jtop.read_once(options.host_root):
        facts["module"] = facts["module"] or telemetry.module
        facts["jetpack"] = facts["jetpack"] or telemetry.jetpack
        detail = ", ".join(filter(None, (telemetry.module, telemetry.part_number, telemetry.power_mode)))
        facts["evidence"].append({"source": "jtop", "found": True, "detail": detail})
    if options.output == "json":
        import json

        _say(json.dumps(facts, indent=2))
    else:
        _say("\n".join(_as_text(facts)))
    return EXIT_FAILED if detection.gpu.state == "absent" else EXIT_OK


def _labels(options: argparse.Namespace) -> int:
    from tegra_device_plugin.board import labels
    from tegra_device_plugin.board.detection import detect
    from tegra_device_plugin.system.atomicfile import replace_file
    from tegra_device_plugin.telemetry import jtop

    settings, _ = config.load(options.config, {}, {})
    detection = detect(options.host_root)
    telemetry = jtop.read_once(options.host_root)
    units = settings.units
    found = labels.node_labels(
        detection,
        replicas=None if units else settings.sharing.replicas,
        renamed=config.DEFAULT_RESOURCE not in units.resources if units else settings.sharing.renamed,
        memory_unit=units.memory_unit if units else None,
        power_mode=telemetry.power_mode if telemetry else None,
        gpu_share=_gpu_share(options.host_root, detection.gpu.state)
        if options.qos_policy == "burst-share"
        else None,
    )
    text = labels.render(found, options.output)
    if options.output_file:
        replace_file(options.output_file, text)
    else:
        _say(text.rstrip())
    return EXIT_OK if found else EXIT_FAILED


def _gpu_share(root: Path, state: str) -> str | None:
    """What becomes of weights on this board; not known before the GPU was switched on."""
    from tegra_device_plugin.agent import nvgpu
    from tegra_device_plugin.system.hosttree import HostTree

    if nvgpu.find_node(HostTree(root)):
        return "weighted"
    return None if state == "unpowered" else "unsupported"


def _holders(options: argparse.Namespace) -> int:
    import asyncio

    from tegra_device_plugin.telemetry import view

    try:
        settings, _ = config.load(_config_file(options), os.environ, {})
    except config.ConfigError as error:  # who holds what is asked for most when something is wrong
        settings = config.Settings()
        for problem in error.problems:
            _complain(f"limits are not shown: {problem}")
    found, accounts = asyncio.run(view.of_node(options.pod_resources, settings.units, settings.gpu_limit_dir))
    if options.host_root:
        from tegra_device_plugin.agent import memory

        try:
            found = view.with_resident(found, memory.by_container(options.host_root))
        except memory.UnknownUseError as error:
            _complain(f"what processes hold is not shown: {error}")
    if options.output == "json":
        import json

        _say(json.dumps(view.as_dict(found, accounts), indent=2))
    else:
        _say("\n".join(view.as_lines(found, accounts)))
    return EXIT_OK


def _allocate(options: argparse.Namespace) -> int:
    from tegra_device_plugin.cuda.driver import Cuda

    with _held(options):
        cuda = Cuda()
        allocated = cuda.allocate(options.mib)
        free, total = cuda.info()
        end = "" if allocated == options.mib else ", then CUDA was out of memory"
        _say(
            f"allocated {allocated} of {options.mib} MiB{end}; CUDA says that {free} of {total} MiB are free"
        )
    return EXIT_OK if allocated == options.mib else EXIT_FAILED


def _compute(options: argparse.Namespace) -> int:
    from tegra_device_plugin.cuda.kernel import compute

    with _held(options):
        for path in sorted(Path("/dev").rglob("nv*")):
            if path.is_char_device():
                _say(str(path))
        done = compute()
        _say(f"computed {done.count} numbers on {done.device} in {done.seconds * 1000:.1f} ms, all are right")
    return EXIT_OK


@contextmanager
def _held(options: argparse.Namespace) -> Iterator[None]:
    """With --hold, wait at the end until SIGTERM or SIGINT, for as long as what was done is to last."""
    import signal

    ends = (signal.SIGTERM, signal.SIGINT)
    if options.hold:
        # Waited for below, also as process 1 of a container, which no signal ends by itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    yield
    if options.hold:
        sys.stdout.flush()
        signal.sigwait(ends)


def _koordinator_device(options: argparse.Namespace) -> int:
    import json

    from tegra_device_plugin.board import health
    from tegra_device_plugin.board.detection import detect
    from tegra_device_plugin.sharing import koordinator

    settings, _ = config.load(options.config, {}, {})
    if settings.units is None or settings.units.preset != "koordinator":
        raise config.ConfigError(
            ["this needs a configuration with `sharing.units` and `preset: koordinator`"]
        )
    found = detect(options.host_root)
    if found.gpu.state == "absent":
        return EXIT_FAILED
    verdict = health.judge(health.sample(options.host_root, found.gpu))
    infos = koordinator.device_infos(found, settings.units, verdict)
    _say(json.dumps(koordinator.device(options.node, infos), indent=2))
    return EXIT_OK


def _simulate(options: argparse.Namespace) -> int:
    from tegra_device_plugin import simulation

    if options.remove:
        names = simulation.withdraw(options.node)
        _say(f"{options.node}: taken back: {', '.join(names) or 'nothing, as nothing is simulated there'}")
        return EXIT_OK
    settings, _ = config.load(_config_file(options), os.environ, {})
    simulation.advertise(options.node, settings.counts)
    _say(f"{options.node}: simulated: {_counted(settings.counts)}; no container gets a GPU for them")
    return EXIT_OK


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _config_check(options: argparse.Namespace) -> int:
    settings, notes = config.load(options.file, {}, {})
    sharing = settings.sharing
    _say(f"{options.file}: good: {_counted(settings.counts)}")
    if settings.units:
        from tegra_device_plugin.sharing import units

        _say("\n".join(units.promises(settings.units)))
    if sharing.replicas > 1:
        limit = "one per container" if sharing.fail_requests_greater_than_one else "any number per container"
        _say(f"the GPU is shared by time-slicing, {limit}; memory is not divided")
    for note in notes:
        _say(note)
    return EXIT_OK


def _as_text(facts: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in facts.items():
        if key == "evidence":
            lines.append("looked at:")
            lines += [f"  {'+' if one['found'] else '-'} {one['source']}: {one['detail']}" for one in value]
        elif isinstance(value, dict):
            lines += [f"{indent}{key}:", *_as_text(value, indent + "  ")]
        else:
            shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            lines.append(f"{indent}{key + ':':<20} {'unknown' if shown is None else shown}")
    return lines


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str) -> None:
    sys.stderr.write(f"tegra-device-plugin: {text}\n")
