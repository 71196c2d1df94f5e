# SPDX-License-Identifier: Apache-2.0
"""Device plugin and DRA driver as processes on one node: one of them offers the GPU, never both."""

import signal
from pathlib import Path

import pytest

from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, running


@pytest.fixture
def plugins(node: DraNode) -> Path:
    directory = node.kubelet.directory / "device-plugins"
    directory.mkdir()
    return directory


async def test_the_driver_has_a_late_gpu_until_the_driver_ends(
    node: DraNode, api: FakeApi, plugins: Path
) -> None:
    away = node.root.rename(node.root.with_name("away"))
    node.root.mkdir()
    async with FakeKubelet(plugins) as kubelet, running(DEFAULT_COMMAND, node.root, plugins) as plugin:
        await plugin.until_logged("no Tegra GPU here")
        async with node.start() as driver:
            await driver.until_logged("no Tegra GPU here")
            await node.kubelet.until_registered()
            node.root.rmdir()
            away.rename(node.root)
            await api.until(lambda: bool(api.devices), "device in the slice")
            await plugin.until_logged("the DRA driver serves this board")
            assert not kubelet.history
            driver.signal(signal.SIGTERM)
            await driver.ended()
        await kubelet.until_allocatable()


async def test_the_driver_gets_the_gpu_once_the_plugin_has_ended(
    node: DraNode, api: FakeApi, plugins: Path
) -> None:
    # Without a kubelet the plugin has no socket by which the driver's start could recognize it.
    async with running(DEFAULT_COMMAND, node.root, plugins) as plugin:
        await plugin.until_logged("the GPU is healthy")
        async with node.start() as driver:
            await driver.until_logged("the device plugin serves this board")
            async with FakeKubelet(plugins) as kubelet:
                await kubelet.until_allocatable()
                assert not api.devices
            plugin.signal(signal.SIGTERM)
            await plugin.ended()
            await api.until(lambda: bool(api.devices), "device in the slice")
