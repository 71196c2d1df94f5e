#!/bin/sh
# bootstrap.sh ansible|ansible-2.16|image|dev|lock [BUNDLE]: creates .venv, with wheels of which tools/requirements/ has the hashes.
# `ansible` is what the playbooks need, `ansible-2.16` the same for boards with JetPack 4, `image` what builds the plugin's image, `lock`
# what writes these lists. `dev` is what the tests and linters need, with all of it except `lock`, and the plugin of this checkout.
# bootstrap.sh refresh [BUNDLE]: `ansible` if .venv is missing or older than its list, for install.sh and jetson-k3s. A .venv with
# ansible-2.16 keeps it.
# With the offline bundle BUNDLE, the wheels are taken from its directory `controller`, and from PyPI only if that has not all of them.
# On a bare Debian machine it installs python3-venv first (root and apt needed for that only).
set -eu
case ${2-} in
    '' | /*) wheels=${2:+$2/controller} ;;
    *) wheels=$PWD/$2/controller ;;
esac
cd "$(dirname "$0")/.."

lock=$1
if [ "$lock" = refresh ]; then
    lock=$(cat .venv/.ansible 2>/dev/null) || lock=''
    lock=${lock:-ansible}
    newer=$(find -H .venv/.ansible .venv/.dev -newer "tools/requirements/$lock.txt" 2>/dev/null) || :
    [ -z "$newer" ] || [ ! -x .venv/bin/python ] || exit 0
    echo "Installing Ansible in .venv (tools/requirements/$lock.txt)"
fi

minor=10
case "$lock" in
    ansible*) marker=ansible ;;
    image) marker=image ;;
    dev | lock) marker=$lock minor=11 ;;
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
# Python 3.10 (Ubuntu 22.04) is for the playbooks alone: no ansible-core after 2.17 runs with it.
[ "$lock" != ansible ] || .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || lock=ansible-2.16
install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}
listed() {
    install --require-hashes --requirement "tools/requirements/$lock.txt" "$@"
}
if [ "$lock" = dev ]; then
    install --require-hashes --requirement tools/requirements/pip.txt
fi
if [ ! -d "$wheels" ]; then
    listed
elif ! listed --no-index --find-links "$wheels"; then
    echo "$wheels has not all wheels for this computer's Python. Trying PyPI" >&2
    listed
fi
if [ "$marker" = dev ]; then
    # With the setuptools of the list: pip would otherwise download one.
    install --no-deps --no-build-isolation --no-index --editable .
fi
echo "$lock" > ".venv/.$marker"
