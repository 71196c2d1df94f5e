# SPDX-License-Identifier: Apache-2.0
"""What one GPU is divided into, and what a container gets that asks for it. Pure functions."""
