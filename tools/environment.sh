#!/usr/bin/env bash
# Make a virtual environment with an editable installation of this project, unless it is up to date.
#
#   tools/environment.sh DIRECTORY EXTRAS [CONSTRAINTS]
#   tools/environment.sh .venv-oldest test tools/constraints-oldest.txt
#
# The variable PYTHON selects the interpreter. The versions are those of CONSTRAINTS, by default
# tools/constraints.txt; `make constraints` writes both files anew.
set -euo pipefail
cd "$(dirname "$0")/.."
script=$PWD/tools/environment.sh
directory=$1 extras=$2 constraints=${3:-tools/constraints.txt}

in_range() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if in_range "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        elif [ "$candidate" = "${PYTHON:-}" ]; then
            echo "PYTHON=$PYTHON: Python 3.11 to 3.14 was expected" >&2
            return 1
        fi
    done
    echo "No Python 3.11 to 3.14 on PATH. Install one, or type: make PYTHON=/path/to/python3" >&2
    return 1
}

# uv installs an environment in a tenth of pip's time. Debian's Python has no ensurepip; without it,
# `python3 -m venv` leaves half an environment.
install_uv() {
    local python=$1 package
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "$python lacks the module ensurepip. Install $package or uv." >&2
            return 1
        fi
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
    fi
    "$python" -m venv --clear build/uv
    build/uv/bin/python -m pip install --quiet --disable-pip-version-check \
        "$(grep '^uv==' tools/constraints.txt)"
}

# The stamp depends on contents and on the path, not on times: a checkout changes times. A moved
# environment would still import the checkout at the old path.
wanted=$({ printf '%s\n' "$PWD" "$extras" "${PYTHON:-}"; cat setup.py "$constraints" "$script"; } \
    | sha256sum | cut -d ' ' -f 1)
stamp=$directory/up-to-date
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
python=$(find_python)
echo "Setting up $directory with $python" >&2
uv=$(command -v uv || echo build/uv/bin/uv)
[ -x "$uv" ] || install_uv "$python"
# The user's configuration must not add packages, nor uv fetch another interpreter. pip is there
# because `kochi machine setup` and the tests of the installation call it.
export UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1
"$uv" venv --quiet --clear --seed --python "$python" "$directory"
"$uv" pip install --quiet --python "$directory/bin/python" --constraint "$constraints" \
    --editable ".[$extras]"
echo "$wanted" >"$stamp"
