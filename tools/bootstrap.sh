#!/bin/sh
# Creates .venv with the versions of constraints.txt. On a bare Debian machine it installs python3-venv first (root and apt needed for that only).
set -eu
cd "$(dirname "$0")/.."

usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
}

python=$(find_python)
if [ -z "$python" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get -o DPkg::Lock::Timeout=300 update -q
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends python3 python3-venv
        python=$(find_python)
    fi
    if [ -z "$python" ]; then
        echo "error: Python 3.11 or newer with the venv module is needed (Debian: apt-get install python3-venv, as root)" >&2
        exit 1
    fi
fi

[ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || "$python" -m venv --clear .venv
# --group needs pip 25.1.
.venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev --editable .
touch .venv/.ready
