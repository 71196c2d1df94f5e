# SPDX-License-Identifier: Apache-2.0
"""What one GPU is divided into, and what a container gets that asks for it.

Pure functions, but for the files of the memory limit (limitfiles.py, ledger.py).
"""
