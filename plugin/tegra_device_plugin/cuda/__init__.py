# SPDX-License-Identifier: Apache-2.0
"""A CUDA program in Python, to test a pod's GPU: it allocates memory and computes.

It uses CUDA's driver API, which every JetPack has, by ctypes: no toolkit, no compiler.
"""
