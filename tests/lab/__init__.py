# SPDX-License-Identifier: Apache-2.0
"""The lab: virtual Jetson boards (systemd containers with a simulated Tegra) reached over SSH.

`python -m tests.lab up` brings boards up, `down` removes every trace. README.md says what is simulated.
"""
