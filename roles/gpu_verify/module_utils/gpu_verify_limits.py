# SPDX-License-Identifier: Apache-2.0
"""Check that GPU memory in units is limited: a greedy pod, and its neighbour that must not notice.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import re

from ansible.module_utils.gpu_verify_pods import pod, why
from ansible.module_utils.gpu_verify_runner import CheckFailed, Skipped
from ansible.module_utils.k3s_kubectl import is_true

# How the plugin's image allocates memory by CUDA (its commands/cuda_programs.py), and what it says then.
ALLOCATE = ("python3.11", "-m", "tegra_device_plugin", "allocate")
ALLOCATED = re.compile(r"^allocated (\d+) of \d+ MiB.*$", re.MULTILINE)
PODS = 2
# Percent of its share that each pod must get: on a board CUDA's contexts take something of it.
ENOUGH = 75
# The program allocates in steps of 16 MiB (STEP_MIB, cuda/program.py): of less than four, one is too much.
LEAST_MIB = 64
GREEDY, NEIGHBOUR = "greedy", "neighbour"


def ask(bench, record, name, mib):
    """Have a pod with a share allocate and hold so much; return (MiB that it got, its words)."""
    bench.start(record, pod(name, bench.params, [*ALLOCATE, str(mib), "--hold"]))
    said = bench.heard(record, name, ALLOCATED, "allocate")
    return int(said.group(1)), said.group(0)


def shares(gpu):
    """Return what a pod's share of memory is, and what CUDA can have of it, in MiB."""
    share = gpu["memory_bytes"] * (gpu["devices"] // PODS) // gpu["devices"] >> 20
    return share, share - (gpu["context_bytes"] >> 20)


def judge(got, share, usable):
    """Raise CheckFailed unless the greedy one was out of memory where its share ends, in MiB."""
    if got > share:
        raise CheckFailed(
            "{} got {} MiB, expected at most its share of {} MiB: nothing limits it".format(
                GREEDY, got, share
            )
        )
    if got * 100 < usable * ENOUGH:
        raise CheckFailed(
            "{} was out of memory at {} MiB, expected about its share of {} MiB: less is free than is "
            "sold".format(GREEDY, got, share)
        )


def limits(bench, gpu, record):
    """A pod that wants more than its share is out of memory; its neighbour has his, before and after."""
    share, usable = shares(gpu)
    if gpu["devices"] < PODS or usable < LEAST_MIB:
        raise Skipped(
            "it takes {} pods with {} MiB or more each, and half of what is sold is {} MiB".format(
                PODS, LEAST_MIB, max(usable, 0)
            )
        )
    within = usable * ENOUGH // 100
    # The neighbour first: what greed does to those who are there already is the question.
    kept, said = ask(bench, record, NEIGHBOUR, within)
    if kept < within:
        raise CheckFailed(
            "{} got {} MiB, expected the {} MiB that it asked for, of its share of {} MiB: less is free than "
            "is sold".format(NEIGHBOUR, kept, within, share)
        )
    record.prove("{}: {}".format(NEIGHBOUR, said))
    got, said = ask(bench, record, GREEDY, 2 * share)
    record.prove("{}, whose share is {} MiB: {}".format(GREEDY, share, said))
    judge(got, share, usable)
    item = bench.get(NEIGHBOUR)
    if not item or not is_true(item, "Ready"):
        raise CheckFailed(
            "{} does not run any more since {} was out of memory, expected it to notice nothing: {}".format(
                NEIGHBOUR, GREEDY, why(item or None)
            )
        )
    record.prove("{} still runs".format(NEIGHBOUR))
    bench.clear()
