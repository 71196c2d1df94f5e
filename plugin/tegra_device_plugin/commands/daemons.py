# SPDX-License-Identifier: Apache-2.0
"""`run`, `dra`, `agent` and `throttle-taint`: the commands that serve until a signal ends the process."""

from __future__ import annotations

import argparse
import asyncio
import os
from functools import partial

from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    Command,
    add_config,
    add_options,
    add_pod_resources,
    configuration,
    flags,
    print_error,
)
from tegra_device_plugin.config.options import (
    AGENT_OPTIONS,
    DRA_OPTIONS,
    PLUGIN_OPTIONS,
    TAINT_OPTIONS,
    duration,
)
from tegra_device_plugin.config.settings import (
    MODES,
    QOS_POLICIES,
    load_agent,
    load_dra,
    load_plugin,
    load_taint,
)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "settings in NVIDIA's `version: v1` format; CONFIG_FILE")
    add_options(parser, PLUGIN_OPTIONS)
    parser.add_argument(
        "--stand-by",
        action="store_true",
        help="serve only while no other instance on this board does: for an instance that starts before the "
        "kubelet, which refuses pods until their resource is there, and goes on when the plugin's pod ends",
    )


def _run(options: argparse.Namespace) -> int:
    from tegra_device_plugin.plugin import DevicePlugin  # noqa: PLC0415 - each command imports its own parts

    settings = configuration(options, PLUGIN_OPTIONS, load_plugin)
    asyncio.run(DevicePlugin(settings, standby=options.stand_by).run())
    return EXIT_OK


def _dra_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "settings in NVIDIA's `version: v1` format, with sharing.dra; CONFIG_FILE")
    add_options(parser, DRA_OPTIONS)


def _dra(options: argparse.Namespace) -> int:
    try:
        from tegra_device_plugin.dra.driver import Driver  # noqa: PLC0415 - see _run
    except ModuleNotFoundError as error:
        return _without_extra("dra", error)

    asyncio.run(Driver(configuration(options, DRA_OPTIONS, load_dra)).run())
    return EXIT_OK


def _without_extra(command: str, error: ModuleNotFoundError) -> int:
    print_error(
        f"the command {command} needs the package {error.name}, which is not installed: "
        "pip install 'tegra-device-plugin[dra]'"
    )
    return EXIT_FAILED


def _taint_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TAINT_OPTIONS)


def _taint(options: argparse.Namespace) -> int:
    try:
        from tegra_device_plugin.throttling.taint_service import ThrottleTaint  # noqa: PLC0415 - see _run
    except ModuleNotFoundError as error:
        return _without_extra("throttle-taint", error)
    from tegra_device_plugin.service import ConfigWatch  # noqa: PLC0415 - see _run

    given = flags(options, TAINT_OPTIONS)
    asyncio.run(ThrottleTaint(ConfigWatch(None, lambda: load_taint(os.environ, given))).run())
    return EXIT_OK


def _agent_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "settings of `run`, for the resources of shares; CONFIG_FILE")
    add_options(parser, AGENT_OPTIONS)
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="report",
        help="what happens to a pod whose GPU memory exceeds its share: a line in the log and a "
        "metric, or also the end of its GPU processes (default: report)",
    )
    parser.add_argument(
        "--qos-policy",
        choices=QOS_POLICIES,
        default="best-effort",
        help="best-effort: the driver's own time slices; burst-share: time slices by the pods' gpu-core; "
        "per-pod: each pod's annotation metax-tech.com/sgpu-qos-policy chooses one of them; "
        "fixed-share is rejected, as the driver has no ceiling (default: best-effort)",
    )
    parser.add_argument(
        "--unused-after",
        type=_duration,
        metavar="DURATION",
        help="name each container that has had the GPU for so long without GPU memory, in the log and as a "
        "metric: 90s, 10m or 1h; longer than a program needs until it uses CUDA (default: off)",
    )
    add_pod_resources(parser)


def _duration(text: str) -> int:
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _agent(options: argparse.Namespace) -> int:
    from tegra_device_plugin.agent.node_agent import Agent  # noqa: PLC0415 - see _run
    from tegra_device_plugin.agent.nvgpu import Linux  # noqa: PLC0415 - see _run

    load = partial(
        load_agent,
        mode=options.mode,
        qos_policy=options.qos_policy,
        unused_after=options.unused_after,
        pod_resources=options.pod_resources,
    )
    asyncio.run(Agent(configuration(options, AGENT_OPTIONS, load), Linux()).run())
    return EXIT_OK


COMMANDS = {
    "run": Command(
        _run_arguments,
        _run,
        "Every option is also an environment variable and a key of the file's flags.plugin; "
        "the flag wins over the variable, and the variable over the file.",
    ),
    "dra": Command(
        _dra_arguments,
        _dra,
        "Every option is also an environment variable, and but for the last two a key of the file's "
        "flags.plugin; the flag wins over the variable, and the variable over the file. It needs Kubernetes "
        "1.34, and the API server: by the pod's service account, or a kubeconfig.",
    ),
    "throttle-taint": Command(
        _taint_arguments,
        _taint,
        "Every option is also an environment variable; the flag wins over the variable. It sets and removes "
        "the taint jetson-k3s.github.io/throttled with the effect PreferNoSchedule. It needs the API server, "
        "by the pod's service account or a kubeconfig. The admission policy that limits the account to its "
        "own node and this taint needs Kubernetes 1.30.",
    ),
    "agent": Command(
        _agent_arguments,
        _agent,
        "It reads the same file and environment as `run`. It needs the host's /proc, /sys with "
        "debugfs, /dev and /var/log/pods below the host root; for evict the capability KILL and the host's "
        "pids; for burst-share a privileged container. So it can read all pods' logs and all processes' "
        "command lines; with evict kill each process of the node; with burst-share do everything that root "
        "can do.",
    ),
}
