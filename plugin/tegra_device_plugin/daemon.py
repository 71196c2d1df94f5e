# SPDX-License-Identifier: Apache-2.0
"""`run`: looks at the board, keeps its GPU registered with the kubelet, ends cleanly on a signal."""

import asyncio
import logging
import signal

from tegra_device_plugin.config import Settings
from tegra_device_plugin.detection import Detection, detect
from tegra_device_plugin.kubelet.registration import Registrar, sweep
from tegra_device_plugin.kubelet.server import Advertised
from tegra_device_plugin.offer import make_offer
from tegra_device_plugin.sensor import Sensor

POLL_SECONDS = 5.0
READ_DEADLINE_SECONDS = 4.0

log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    advertised = Advertised()
    sweep(settings.device_plugin_dir)
    registrar = Registrar(settings.device_plugin_dir, advertised)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(watch_board(settings, advertised, registrar)),
            tasks.create_task(registrar.run()),
        ]
        await stop.wait()
        log.info("stopping")
        for task in running:
            task.cancel()


async def watch_board(settings: Settings, advertised: Advertised, registrar: Registrar) -> None:
    """Look at the board every POLL_SECONDS and publish what it can offer.

    Nothing is offered before a GPU was seen; one that was seen once stays in the list, unhealthy when it is gone.
    """
    sensor = Sensor(READ_DEADLINE_SECONDS)
    seen = False
    while True:
        try:
            detection = await sensor.read(lambda: detect(settings.host_root))
            state, nodes = detection.gpu.state, detection.gpu.device_nodes
        except (OSError, TimeoutError) as error:
            log.warning("cannot look at the board: %s", error)
            state, nodes = "unknown", ()
        if state in ("ready", "unpowered") and not seen:
            seen = True
            log.info("GPU found: %s", summary(detection))
        if seen:
            advertised.publish(make_offer(settings, nodes, state == "ready", state))
            registrar.look_now()
        await asyncio.sleep(POLL_SECONDS)


def summary(detection: Detection) -> str:
    """Give the board and its GPU in one line."""
    board, gpu = detection.board, detection.gpu
    return f"{board.module or board.model or board.soc}, L4T {board.l4t}, {gpu.chip}, {gpu.state}"
