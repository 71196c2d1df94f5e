# SPDX-License-Identifier: Apache-2.0
"""The driver's sockets where they cannot be made."""

from pathlib import Path

from tegra_device_plugin.dra.driver_sockets import DriverRegistration


async def test_sockets_that_cannot_be_made_are_not_tried_without_a_pause(tmp_path: Path) -> None:
    (tmp_path / "plugins").touch()  # no directory
    registration = DriverRegistration(tmp_path, {})
    for _ in range(3):
        await registration._check_sockets()
    assert registration.failed_registrations == 1
    assert "plugins" in registration.not_ready_reason
