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
  grep -E "assertion violated \(|assertion violated  !|invalid end state \(" "$name.log" || true
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

# Client placement: one block a rank for many calls, two or three blocks for few.
epochs() {
  name=$1 expected=$2
  shift 2
  check client_launches "epochs_$name" "$expected" "$@"
}
epochs two_blocks none -DCALLS=2
epochs deadline none -DB=1 -DDEADLINES=1 -DDIES
epochs deadline_two_blocks none -DCALLS=1 -DONE_KIND -DDEADLINES=1
epochs three_ranks none -DN=3 -DB=1 -DCALLS=1 -DDEADLINES=1 -DDIES
epochs leave none -DB=1 -DLEAVES
epochs leave_and_death none -DB=1 -DCALLS=2 -DLEAVES -DDEADLINES=1 -DDIES
epochs refused none -DB=1 -DREFUSES
epochs orders none -DB=1 -DORDERS
epochs COUNT_OPEN some -DB=1 -DMUTANT_COUNT_OPEN
epochs PUBLISH_AFTER_GIVE_UP some -DCALLS=1 -DDEADLINES=1 -DMUTANT_PUBLISH_AFTER_GIVE_UP
epochs PARTIAL_AFTER_GIVE_UP some -DCALLS=1 -DDEADLINES=1 -DMUTANT_PARTIAL_AFTER_GIVE_UP
epochs BLIND_FINISHER some -DB=3 -DCALLS=1 -DONE_KIND -DDEADLINES=1 -DMUTANT_BLIND_FINISHER
epochs UNBOUNDED_LEAVE some -DB=1 -DLEAVES -DMUTANT_UNBOUNDED_LEAVE
epochs GO_ON_AFTER_DEADLINE some -DB=1 -DDEADLINES=3 -DMUTANT_GO_ON_AFTER_DEADLINE
epochs ONE_COUNTER some -DCALLS=2 -DMUTANT_ONE_COUNTER
epochs OWN_SLOT_ONLY some -DCALLS=2 -DMUTANT_OWN_SLOT_ONLY
epochs NO_TAGS some -DB=1 -DCALLS=2 -DORDERS -DMUTANT_NO_TAGS
epochs REFUSED_UNCOUNTED some -DB=1 -DREFUSES -DDEADLINES=3 -DMUTANT_REFUSED_UNCOUNTED

# Packets without numbers.
check dense_packets dense_two_blocks none
check dense_packets dense_three_ranks none -DN=3 -DB=1 -DCALLS=3
for mutant in ONE_HALF EMPTY_NEXT_TIME OPEN; do
  check dense_packets "dense_$mutant" some -DMUTANT_$mutant
done

# Launches go on behind a failure.
check renewal renewal_two_ranks none -DCALLS=3 -DAFTER=3
check renewal renewal_three_ranks none -DN=3 -DCALLS=1 -DAFTER=1
for mutant in SAME_NUMBER EMPTY_EARLY NO_STOP KEEP_PACKETS NO_READY; do
  check renewal "renewal_$mutant" some -DMUTANT_$mutant
done

# Launches on engines go on behind a stall.
check engine_renewal engines_two_ranks none -DCALLS=2 -DAFTER=2
check engine_renewal engines_no_deadline none -DCALLS=2 -DAFTER=2 -DDEADLINES=0
check engine_renewal engines_three_ranks none -DN=3 -DROUNDS=1
for mutant in NO_STALL STALL_ALONE STALL_UNREAD NO_PING NO_STOP STOP_BUSY OWN_COUNT EARLY_ANSWER NO_AWAIT; do
  check engine_renewal "engines_$mutant" some -DDEADLINES=0 -DMUTANT_$mutant
done

# Groups sleep and wake up.
check suspension suspension_two_ranks none -DROUNDS=3
check suspension suspension_death none -DDIES
check suspension suspension_skipped none -DSKIPS
check suspension suspension_three_ranks none -DN=3 -DROUNDS=1
check suspension suspension_three_ranks_death none -DN=3 -DROUNDS=1 -DDIES
for mutant in NO_STOPPED NO_UNMAPPED NO_RESUMING NO_MAPPED; do
  check suspension "suspension_$mutant" some -DSKIPS -DMUTANT_$mutant
done

# An operator asks a job to sleep.
check asked_suspension asked_two_ranks none
check asked_suspension asked_withdrawn none -DWITHDRAWS -DDIES
check asked_suspension asked_three_ranks none -DN=3 -DLAST=1 -DWITHDRAWS -DDIES
for mutant in LARGEST PROGRAM_ANSWERS NO_FREEZE NO_ARRIVED; do
  check asked_suspension "asked_$mutant" some -DWITHDRAWS -DMUTANT_$mutant
done

# A session outlives its process.
check checkpoint checkpoint_two none
check checkpoint checkpoint_restart none -DRESTARTS=1 -DEXPIRES
check checkpoint checkpoint_three none -DCOPIES=3 -DROUNDS=1 -DEXPIRES
for mutant in SAME_TOKEN ANYBODY FORGETS_TOKEN OLD_SECRET WAITS_AT_ONCE UNSAVED; do
  check checkpoint "checkpoint_$mutant" some -DRESTARTS=1 -DMUTANT_$mutant
done
