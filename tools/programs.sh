#!/usr/bin/env bash
# Install those of the named programs that are missing; each has the name of its Debian package, or
# comes after it.
#
#   tools/programs.sh git make mariadb-server-core:mariadbd
set -euo pipefail

# Daemons are not on everybody's.
PATH=$PATH:/usr/sbin:/sbin
missing=()
for each in "$@"; do
    command -v "${each#*:}" >/dev/null || missing+=("${each%%:*}")
done
# The C library's headers come apart from the compiler, which only recommends them.
if [[ " $* " == *" gcc "* && ! -e /usr/include/stdio.h ]]; then
    missing+=(libc6-dev)
fi
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing, and cannot be installed from here: ${missing[*]}" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
