# SPDX-License-Identifier: Apache-2.0
"""Whether a board has to be started again, and because of which packages.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re

from ansible.module_utils.jetson_board import parse_version, read

# Packages of Debian and Ubuntu write both, by update-notifier-common. /var/run is /run.
REQUIRED = "run/reboot-required"
PACKAGES = "run/reboot-required.pkgs"
MODULES = "lib/modules/*/modules.dep"


def installed_kernel(root, release):
    """Release of another kernel that was installed since the board started, None if there is none.

    `depmod` writes a kernel's list of modules when that kernel is installed. `release` is the running one.
    """
    started = parse_version(r"(?m)^btime (\d+)$", read(root, "proc/stat"))
    newer = [
        (os.path.getmtime(path), os.path.basename(os.path.dirname(path)))
        for path in glob.glob(os.path.join(root, MODULES))
    ]
    since = [(when, name) for when, name in newer if name != release and when > float(started or "inf")]
    return max(since)[1] if since else None


def reboot_facts(root, release):
    """Is a reboot required, by which packages, and for which kernel?"""
    packages = sorted(set(re.findall(r"\S+", read(root, PACKAGES) or "")))
    kernel = installed_kernel(root, release)
    required = os.path.exists(os.path.join(root, REQUIRED)) or kernel is not None
    return {"required": required, "packages": packages, "kernel": kernel}
