/* Breaking a group while its launches are on the lanes: nobody's launch ends with OK on what a freed lane has sent.
 *
 * One launch, N ranks. Each rank is an engine's thread and a lane; each step of one is one access to a word that others see.
 * Rank 0's lane waits for a signal of every other rank before it sends; the others wait for rank 0's before they are done, and
 * may be slow to send or never do so. Any engine may break the group at any moment of its own accord (a command of tandemd's, a
 * deadline, its own end), and says so in the order log. One engine may crash before any step, or stand still while its lane goes
 * on, until tandemd ends it.
 *
 *   engine   fail what has not started, mark the launch failed, broken = 1, BREAK in the log · wait for all marks · let go
 *
 * Code: engine/launch/group_breaker.cc, launch_start.cc (Break), launch_decide.cc (Apply), ipc/arrival_table.h.
 *
 * Checked:
 *   honesty     done with the status OK means that no input came from a lane that was let go (assert in Lane)
 *   liveness    once the group breaks, every living lane reaches its end (no invalid end state)
 */
#ifndef N
#define N 2
#endif

#define ALL ((1 << N) - 1)
#define ME (1 << me)

byte broken_mask = 0;   /* the arrival table's words, a bit a rank */
bool log_break = false;
bool log_start = false; /* START has been appended: an engine that has read it enqueues */
bool enqueued[N];
bool unused[N];         /* the engine has ended without it */
bool failed[N];         /* status record */
bool freed[N];          /* signal area filled with the release value */
bool signal[N * N];     /* by reader, writer */
bool tainted[N];        /* history: this lane has gone on because it was let go, or on what such a lane sent */
bool done[N];
bool crashed[N];
byte faults = 0;

#define DEAD crashed[me] -> goto dead

/* Waits for the signal of rank p. Who passes by the release is tainted, and who reads a tainted rank's signal as well. */
inline Await(p) {
  if
  :: d_step { !crashed[me] && (signal[me * N + p] || freed[me]) ->
       if
       :: !signal[me * N + p] || tainted[p] -> tainted[me] = true
       :: else -> skip
       fi
     }
  :: DEAD
  fi
}

proctype Lane(byte me) {
  byte p = 0;
  if :: enqueued[me] -> skip :: DEAD :: unused[me] -> goto dead fi;
  if
  :: me == 0 ->
     p = 1;
     do
     :: p < N -> Await(p); p++
     :: p == N -> break
     od;
     p = 1;
     do
     :: crashed[me] -> goto dead
     :: p < N && !crashed[me] -> signal[p * N] = true; p++
     :: p == N -> break
     od
  :: else ->
     /* Its own chunk may take for ever: a kernel that waits for the user's own signals, say. */
     if
     :: !crashed[me] -> signal[me] = true
     :: freed[me] && !crashed[me] -> tainted[me] = true; signal[me] = true
     :: DEAD
     fi;
     Await(0)
  fi;
  p = 0;
  d_step {
    if
    :: !crashed[me] -> done[me] = true; assert(failed[me] || !tainted[me])
    :: else -> skip
    fi
  }
dead:
  skip
}

/* The engine stands still from here on; its lane does not. Then tandemd has ended it. */
#define FAULT atomic { faults < 1 -> faults++ }; crashed[me] = true; goto over

proctype Engine(byte me) {
  byte p = 0;
end_serving:               /* an engine whose launch has ended goes on reading the log */
  do
  :: FAULT
  :: !log_break && !log_start -> log_start = true   /* all have arrived; in the log BREAK is behind START or alone */
  :: log_start && !enqueued[me] -> enqueued[me] = true
  :: !done[me] -> break                             /* told to break, or its own end */
  :: log_break -> break                             /* reads it, after the grace */
  od;
  /* One's own log is read in order: a START before the BREAK may or may not have been acted on; it is not from here on. */
  if
  :: enqueued[me] && !done[me] -> failed[me] = true
  :: enqueued[me] && done[me] -> skip
  :: !enqueued[me] -> unused[me] = true
  fi;
#ifdef MUTANT_ABORT_UNUSED
  /* A communicator whose abort ends the collective on all ranks. */
  p = 0;
  do
  :: unused[me] && p < N -> freed[p] = true; p++
  :: else -> break
  od;
  p = 0;
#endif
#ifdef MUTANT_FREE_BEFORE_MARK
  freed[me] = true;
#endif
  broken_mask = broken_mask | ME;
  log_break = true;
#ifndef MUTANT_FREE_AT_ONCE
  if :: FAULT :: skip fi;
  do
  :: p == N -> break
  :: p < N && ((broken_mask & (1 << p))
#ifndef MUTANT_WAIT_FOR_THE_DEAD
               || crashed[p]
#endif
              ) -> p++
  od;
#endif
  freed[me] = true;
over:
  skip
}

init {
  byte r;
  atomic {
    r = 0;
    do
    :: r < N -> run Lane(r); run Engine(r); r++
    :: else -> break
    od
  }
}
