#!/usr/bin/env bash
# Make git repositories out of the examples, as they would be on your disk: prepare.sh DIRECTORY
#
#   DIRECTORY/taskpool    the library
#   DIRECTORY/fib         the project that benchmarks it
#   DIRECTORY/handwritten the same library under rules of its own
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
directory=$1

mkdir -p "$directory"
cd "$directory"
for name in taskpool fib handwritten; do
    cp -R "$examples/$name" "$name"
    # A clean start, also when somebody has played in examples/.
    rm -rf "$name/.snakemake" "$name/results"
    git init --quiet --initial-branch main "$name"
    git -C "$name" add --all
    # Works without, and in spite of, a git configuration of the user's.
    git -C "$name" -c user.name=example -c user.email=example@localhost \
        -c commit.gpgsign=false -c core.hooksPath=/dev/null \
        commit --quiet --message "The example $name"
done
