# SPDX-License-Identifier: Apache-2.0
"""Callback preload: processes of tasks share the controller's memory."""

import os
import subprocess
import sys

from tools.cache import CHECKOUT

PROGRAM = """\
import gc, os, sys
from ansible_collections.jetson_k3s.cluster.plugins.callback import preload
for _ in range(2):  # a playbook after the other
    preload.share_memory()
assert gc.get_freeze_count() == 0
if os.fork() == 0:
    os._exit(0 if gc.get_freeze_count() > 10_000 else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]), gc.get_freeze_count())
"""


def test_garbage_collection_of_a_new_process_leaves_the_shared_objects_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / ".collections")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["0", "0"]
