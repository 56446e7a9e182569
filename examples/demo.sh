#!/usr/bin/env bash
# The example, from nothing to a table, a plot and results in git: demo.sh DIRECTORY
#
# DIRECTORY is deleted first. Needs `kochi`, `snakemake`, git, make and gcc on PATH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
profile=$here/../profiles/local
directory=${1:?a directory to work in was expected}

# Print a command as one would type it, then run it.
run() {
    printf '\n$'
    printf ' %q' "$@"
    printf '\n'
    "$@"
}

rm -rf "$directory"
"$here/prepare.sh" "$directory"
directory=$(cd "$directory" && pwd)
profile=$(realpath --relative-to "$directory/fib" "$profile")

# Only this demo's: neither a configured machine nor the user's own ~/.kochi.
export KOCHI_ROOT=$directory/kochi-root
unset KOCHI_CONF KOCHI_DEFAULT_MACHINE SNAKEMAKE_PROFILE
export GIT_PAGER=cat

printf '$ cd %q\n$ export KOCHI_ROOT=%q\n' "$directory/fib" "$KOCHI_ROOT"
cd "$directory/fib"
run kochi init
run kochi artifact init ../fib-artifacts
run snakemake --profile "$profile" fib_batch_test

run cat results/local/fib/batch_test.md
# A demo without its plot has failed.
test -s results/local/fib/batch_test.png
run kochi artifact log
run kochi show jobs -t -l 5
run kochi artifact sync

cat <<END

The plot:        $PWD/results/local/fib/batch_test.png
The results:     $(echo "$directory"/fib-artifacts/*/fib/batch_test)

To go on, type:

  cd $(printf %q "$PWD")
  export KOCHI_ROOT=$(printf %q "$KOCHI_ROOT")
  export PATH=$(printf %q "$(dirname "$(command -v snakemake)")"):\$PATH
  snakemake --profile $(printf %q "$profile") fib_batch_test    # nothing to be done
  echo '// faster' >> fib.c                                     # code: every point runs again
  snakemake --profile $(printf %q "$profile") fib_batch_test
  snakemake --list-target-rules
  kochi show installs
END
