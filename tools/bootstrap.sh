#!/bin/sh
# bootstrap.sh ansible|ansible-2.16|image|dev: creates .venv. `ansible` is what the playbooks need, `ansible-2.16` the same for boards with
# JetPack 4, `image` what builds the plugin's image: wheels with the hashes of tools/requirements/. `dev` is all of it, and besides what
# tests and linters need, with the versions of constraints.txt.
# bootstrap.sh refresh: `ansible` if .venv is missing or older than its list, for install.sh and jetson-k3s. A .venv with ansible-2.16 keeps it.
# On a bare Debian machine it installs python3-venv first (root and apt needed for that only).
set -eu
cd "$(dirname "$0")/.."

if [ "$1" = refresh ]; then
    has=$(cat .venv/.ansible 2>/dev/null) || has=''
    set -- "${has:-ansible}"
    newer=$(find -H .venv/.ansible .venv/.dev -newer "tools/requirements/$1.txt" 2>/dev/null) || :
    [ -z "$newer" ] || [ ! -x .venv/bin/python ] || exit 0
    echo "Installing Ansible in .venv (tools/requirements/$1.txt)"
fi

minor=10
case "$1" in
    ansible*) marker=ansible locks=$1 ;;
    image) marker=image locks=image ;;
    dev) marker=dev locks='ansible image' minor=11 ;;
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

# One that is there stays, unless its Python does not run or is too old for the wanted environment.
usable .venv/bin/python || "$python" -m venv --clear .venv
pip='.venv/bin/python -m pip install --quiet --disable-pip-version-check'
for lock in $locks; do
    # Python 3.10 (Ubuntu 22.04) is for the playbooks alone: no ansible-core after 2.17 runs with it.
    [ "$lock" != ansible ] || .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || lock=ansible-2.16
    $pip --require-hashes --requirement "tools/requirements/$lock.txt"
done
if [ "$marker" = dev ]; then
    $pip 'pip>=25.1' # knows --group
    $pip --constraint constraints.txt --group dev --editable .
fi
echo "$lock" > ".venv/.$marker"
