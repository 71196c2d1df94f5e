# SPDX-License-Identifier: Apache-2.0
"""The commands: `main` of each module does what `cli.py` has parsed.

A module is imported when it is asked for: `detect` does not need gRPC, and `run` registers earlier.
"""
