# SPDX-License-Identifier: Apache-2.0
"""The commands: `cli.py` imports the module of the chosen command, which has it in its table `COMMANDS`."""
