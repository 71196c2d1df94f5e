# SPDX-License-Identifier: Apache-2.0
"""Which packet filter rules are Kubernetes' own, and how to take away these alone.

Pure; used on the board, therefore Python 3.6 compatible.
"""

import re

# Chains of kube-proxy, the kubelet and kube-router (KUBE-), of the CNI plugins and of flannel.
OWN_CHAIN = re.compile(r"^:((?:KUBE|CNI|FLANNEL)-\S+) ")
# The pattern of K3s' own k3s-killall.sh.
OWN_RULE = re.compile(r"KUBE-|CNI-|flannel", re.IGNORECASE)


def removal(saved):
    """Input for `iptables-restore --noflush` that takes away what is Kubernetes' in `iptables-save`'s output.

    '' when there is nothing. Every other rule and counter stays: unlike writing complete tables, it cannot
    take back what somebody else, as Docker, changes at the same moment.
    """
    lines = []
    for table in saved.split("\nCOMMIT")[:-1]:
        rows = [row for row in table.splitlines() if not row.startswith("#")]
        name = next((row for row in rows if row.startswith("*")), None)
        chains = [match.group(1) for match in map(OWN_CHAIN.match, rows) if match]
        rules = [row for row in rows if row.startswith("-A ") and row.split()[1] not in chains]
        commands = (
            ["-D" + row[2:] for row in rules if OWN_RULE.search(row)]
            + ["-F " + chain for chain in chains]  # all before the first -X: they refer to one another
            + ["-X " + chain for chain in chains]
        )
        if name and commands:
            lines.extend([name, *commands, "COMMIT"])
    return "".join(line + "\n" for line in lines)
