#!/usr/bin/env bash
# Install missing programs. An argument is PROGRAM, if its Debian package has the same name, or
# PACKAGE:PROGRAM.
#
#   tools/programs.sh git make mariadb-server-core:mariadbd
set -euo pipefail

# The PATH of a user often has no directories of daemons.
PATH=$PATH:/usr/sbin:/sbin
missing=()
for each in "$@"; do
    command -v "${each#*:}" >/dev/null || missing+=("${each%%:*}")
done
# The headers of the C library have a package of their own, which the compiler only recommends.
if [[ " $* " == *" gcc "* && ! -e /usr/include/stdio.h ]]; then
    missing+=(libc6-dev)
fi
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing Debian packages, which only root can install: ${missing[*]}" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
