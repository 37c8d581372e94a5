#!/bin/sh
# Checks docs/model with spin: the protocol must hold, and the model must catch the mistake built into its mutant.
# usage: run_model.sh <source directory>. Ends with 77 (skipped) if spin or a C compiler is missing.
set -eu
models="$1/docs/model"
for tool in spin cc; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# check <model> <name> <expected errors: none|some> <definitions…>
check() {
  model=$1 name=$2 expected=$3
  shift 3
  spin -a "$@" "$models/$model.pml" >/dev/null
  cc -O1 -w -DSAFETY -DVECTORSZ=4096 -o pan pan.c
  ./pan -m1000000 >"$name.log"
  grep -q "^State-vector" "$name.log" || { cat "$name.log"; exit 1; }
  grep -E "max search depth too small" "$name.log" && exit 1
  if grep -q "errors: 0" "$name.log"; then found=none; else found=some; fi
  echo "$name: errors $found, expected $expected; $(grep 'states, stored' "$name.log" | tr -s ' ')"
  [ "$found" = "$expected" ]
}

check launch_queue two_ranks none -DN=2 -DLAUNCHES=3
check launch_queue three_ranks none -DN=3 -DLAUNCHES=1
check launch_queue mutant some -DN=2 -DLAUNCHES=2 -DMUTANT_UNREAD_APPEND
check group_break break_two_ranks none -DN=2
check group_break break_three_ranks none -DN=3
for mutant in FREE_AT_ONCE FREE_BEFORE_MARK WAIT_FOR_THE_DEAD ABORT_UNUSED; do
  check group_break "break_$mutant" some -DN=2 -DMUTANT_$mutant
done
