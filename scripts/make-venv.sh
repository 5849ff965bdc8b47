#!/bin/sh
# make-venv.sh FOLDER: a virtual environment with the first Python >= 3.11 on this machine ($PYTHON first, if set).
set -eu
venv=$1

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if fits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

found=
for python in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if fits "$python"; then
        found=$python
        break
    fi
done

# What to install, as this system calls it.
if [ "$(uname -s)" = Darwin ]; then
    install="brew install python@3.12"
elif command -v apt-get >/dev/null 2>&1; then
    install="sudo apt-get install -y python3 python3-venv"
else
    install="install Python 3.11 or newer"
fi

if [ -z "$found" ]; then
    echo "error: no Python >= 3.11 found (tried PYTHON, python3.11 to python3.14, python3, python)" >&2
    echo "try: $install" >&2
    echo "then: make setup   (or: make setup PYTHON=/path/to/python3)" >&2
    exit 1
fi

if ! "$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    # Debian keeps these in a package of their own.
    version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "error: $found cannot make a virtual environment: its venv module is not installed" >&2
    echo "try: sudo apt-get install -y python$version-venv" >&2
    exit 1
fi

echo "Making $venv with $("$found" --version)"
"$found" -m venv --clear "$venv"
