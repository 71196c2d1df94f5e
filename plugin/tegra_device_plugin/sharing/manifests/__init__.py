# SPDX-License-Identifier: Apache-2.0
"""Checks manifests of other systems for GPU sharing: which lines run here, and what to write instead.

Only the command `check-manifest` imports this package. All functions are pure. Sources of names, units and
rules: Project-HAMi/HAMi (examples, settings of its chart) and HAMi-DRA; koordinator-sh/koordinator (user
manuals on MetaX GPUs and on sharing GPUs); elastic-ai/elastic-gpu (README, manifests); Tencent's documents
457/59103 and 457/65734 of qGPU.
"""
