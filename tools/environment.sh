#!/usr/bin/env bash
# Make a virtual environment with an editable installation of this project, unless it is up to date.
#
#   tools/environment.sh DIRECTORY EXTRAS [REQUIREMENT...]
#   tools/environment.sh .venv-oldest test snakemake==9.0.0
#
# The variable PYTHON selects the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
script=$PWD/tools/environment.sh
directory=$1 extras=$2
shift 2

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

# Debian's Python has no ensurepip. Without it, `python3 -m venv` leaves half an environment.
make_environment() {
    local python=$1 package
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$directory"
    elif command -v virtualenv >/dev/null; then
        virtualenv --quiet --clear --python "$python" "$directory"
    else
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "$python lacks the module ensurepip. Install $package or virtualenv." >&2
            return 1
        fi
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
        "$python" -m venv --clear "$directory"
    fi
}

# The stamp depends on contents and on the path, not on times: a checkout changes times. A moved
# environment would still import the checkout at the old path.
wanted=$({ printf '%s\n' "$PWD" "$extras" "$@" "${PYTHON:-}"; cat setup.py "$script"; } \
    | sha256sum | cut -d ' ' -f 1)
stamp=$directory/up-to-date
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
python=$(find_python)
echo "Setting up $directory with $python" >&2
make_environment "$python"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Without --use-pep517, Debian's pip warns about libraries that have no pyproject.toml.
"$directory/bin/python" -m pip install --quiet --use-pep517 --editable ".[$extras]" "$@"
echo "$wanted" >"$stamp"
