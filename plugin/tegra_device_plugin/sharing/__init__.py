# SPDX-License-Identifier: Apache-2.0
"""The extended resources of one GPU, and the allocation of a container that requests them.

Pure functions, except for the files of the memory limit (memory_limit.py, ledger.py).
"""
