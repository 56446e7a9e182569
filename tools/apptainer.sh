#!/usr/bin/env bash
# Make DIRECTORY/bin/apptainer, unless it exists: the tests use a real one. Debian has it in unstable
# only, and for a newer C library, so its files and that library come into the directory and nothing
# is installed. Needs patchelf.
#
#   tools/apptainer.sh build/apptainer
set -euo pipefail

[ ! -e "$1/bin/apptainer" ] || exit 0
rm -rf "$1"  # what an interrupted call has left
mkdir -p "$1"
top=$(cd "$1" && pwd)
state=$top/apt
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/files"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian sid main" > "$state/sources.list"
: > "$state/status"
options=(
    -qq -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State=$state" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache"
    -o Acquire::Languages=none -o APT::Sandbox::User=root -o APT::Update::Post-Invoke-Success::=
)
apt-get "${options[@]}" update
(cd "$state/files" && apt-get "${options[@]}" download apptainer libc6 libseccomp2)
for package in "$state"/files/*.deb; do
    dpkg-deb -x "$package" "$top"
done
# It finds its other files beside itself, with the configuration in a directory that it derives from
# the place of the program or of its starter.
mv "$top/etc" "$top/usr/etc"
libraries=$(dirname "$(find "$top/usr/lib" -name 'libseccomp.so.2')")
mkdir -p "$top/usr/var/lib/apptainer/mnt/session" "$top/usr/lib/var/lib/apptainer/mnt/session"
ln -s ../etc "$top/usr/lib/etc"
loader=$(find "$libraries" -name 'ld-linux*.so.*' | head -n 1)
for program in "$top/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
    patchelf --set-interpreter "$loader" --set-rpath "$libraries" "$program"
done
rm -rf "$state" "$top/usr/share"
mkdir "$top/bin"
# As root it would want capabilities that a container in which the tests run may lack.
printf '#!/bin/sh\nAPPTAINER_USERNS=1 exec "%s" "$@"\n' "$top/usr/bin/apptainer" > "$top/bin/new"
chmod +x "$top/bin/new"
"$top/bin/new" --version > /dev/null
mv "$top/bin/new" "$top/bin/apptainer"
