# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the K3s executable.

Real Kubernetes programs behind the command line, files and join protocol of K3s.
"""
