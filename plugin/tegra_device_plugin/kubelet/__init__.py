# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin API v1beta1 over unix sockets: serve it, and stay registered."""

import sys
from types import ModuleType

from google.protobuf.internal import api_implementation

if api_implementation.Type() == "upb":
    # protobuf imports its pure Python messages even where its C library makes all messages: 10 % of a start.
    _PURE = "google.protobuf.internal.python_message"
    sys.modules.setdefault(_PURE, ModuleType(_PURE))
