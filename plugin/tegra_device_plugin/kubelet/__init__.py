# SPDX-License-Identifier: Apache-2.0
"""The kubelet's APIs: serve the device plugin API and stay registered, read PodResources."""

import sys
from types import ModuleType

from google.protobuf.internal import api_implementation

if api_implementation.Type() == "upb":
    # protobuf imports its pure Python messages even where its C library makes all messages: 10 % of a start.
    _PURE = "google.protobuf.internal.python_message"
    sys.modules.setdefault(_PURE, ModuleType(_PURE))
