#!/bin/sh
# bootstrap.sh ansible|image|dev: creates .venv with the versions of constraints*.txt. `ansible` is what the playbooks need, `image` what
# builds the plugin's image, `dev` all of it.
# On a bare Debian machine it installs python3-venv first (root and apt needed for that only).
set -eu
cd "$(dirname "$0")/.."

case "$1" in
    ansible | image) minor=10 install="--group $1" ;;
    dev) minor=11 install="--group dev --editable ." ;;
esac

usable() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $minor))" 2>/dev/null
}

find_python() {
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
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
        echo "error: Python 3.$minor or newer with the venv module is needed (Debian and Ubuntu: sudo apt-get install python3-venv)" >&2
        exit 1
    fi
fi

# An existing environment stays unless its Python does not run or is too old.
usable .venv/bin/python || "$python" -m venv --clear .venv
# --group needs pip 25.1.
.venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
# Python 3.10 (Ubuntu 22.04) is for the playbooks alone: no ansible-core after 2.17 runs with it.
constraints=constraints.txt
.venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || constraints="constraints-python3.10.txt"
# shellcheck disable=SC2086  # several words
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" $install
touch ".venv/.$1"
