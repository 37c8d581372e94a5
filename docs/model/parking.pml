/* Parking: a launch that has been enqueued before its ranks' streams have reached it, and how it is taken back.
 *
 * One launch, N ranks. Each rank is three processes: the client's stream, the lane, the engine's thread; each step of one
 * is one access to a word that others see. An engine may crash before any step of its own: its lane dies with it, and
 * tandemd breaks the group. Rank 0's stream always arrives; the others' may or may not.
 *
 *   lane     wait request · write passed · wait permit · tell the peers · wait for theirs · body · signals · done
 *   engine   push · PARK · note the arrival · CANCEL (deadline) · hold · guard, status, ack · release
 *
 * Code: engine/launch/parking.cc, launch_start.cc, arrival_table.h.
 *
 * Checked:
 *   safety      a body runs only after all streams have arrived, the own one above all (assert in Lane)
 *   honesty     done with the status OK means that every rank's body ran (assert in Lane)
 *   liveness    whatever is late or dies, every living lane reaches its end (no invalid end state)
 */
#ifndef N
#define N 2
#endif

#define EMPTY 0
#define ALL ((1 << N) - 1)
#define ME (1 << me)
#define PARK 1
#define CANCEL 2

byte log_kind[2];       /* the launch's entries in the order log; written once each, by compare-and-swap */
/* The arrival table's words, a bit a rank: each only ever becomes true, so that a look at one after another sees no more
 * than a look at all of them. */
byte pushed = 0;        /* taken from the ring, and this engine may park */
byte arrived = 0;       /* seen by the engine's thread */
byte held = 0;          /* this rank's lane will not pass before all have acknowledged */
byte acked = 0;         /* guard and status are set */
byte gone = 0;          /* this engine has broken the group: its launches carry the failure */
byte still = 0;         /* and its lane, unless it is in the body already, will not run it */
bool reached[N];        /* history: the client's stream has really reached the launch */
bool request[N];        /* host words of the client's and the engine's */
bool passed[N];
bool permit[N];
bool told[N * N];       /* by reader, writer */
bool signal[N * N];
bool guard[N];          /* device words of the rank's own area */
bool poison[N];         /* the area is filled with the release value */
bool enqueued[N];
bool unused[N];         /* the engine has ended without it */
bool failed[N];         /* status record */
bool ran[N];
bool done[N];
bool crashed[N];
byte crashes = 0;
bool broken = false;    /* tandemd's word to all engines */

proctype Stream(byte me) {
  if
  :: true -> reached[me] = true; request[me] = true
  :: me != 0 -> skip
  fi
}

#define DEAD crashed[me] -> goto dead

proctype Lane(byte me) {
  byte p;
  if :: enqueued[me] -> skip :: DEAD :: unused[me] -> goto dead fi;
  if :: request[me] -> skip :: DEAD fi;
  if :: !crashed[me] -> passed[me] = true :: DEAD fi;
  if :: permit[me] -> skip :: DEAD fi;
  p = 0;
  do
  :: crashed[me] -> goto dead
  :: p < N && !crashed[me] -> told[p * N + me] = true; p++
  :: p == N -> break
  od;
  p = 0;
  do
  :: crashed[me] -> goto dead
  :: p < N && !crashed[me] && (told[me * N + p] || poison[me]) -> p++
  :: p == N -> break
  od;
  skip;
  d_step {
    p = 0;
    if
    :: guard[me] -> skip
    :: else ->
       ran[me] = true;
       assert(reached[me]);
       do
       :: p < N -> assert(reached[p]); p++
       :: else -> break
       od
    fi;
    p = 0
  }
  do
  :: crashed[me] -> goto dead
  :: p < N && !crashed[me] -> signal[p * N + me] = true; p++
  :: p == N -> break
  od;
  p = 0;
  do
  :: crashed[me] -> goto dead
  :: p < N && !crashed[me] && (signal[me * N + p] || poison[me]) -> p++
  :: p == N -> break
  od;
  skip;
  d_step {
    done[me] = true;
    p = 0;
    do
    :: p < N -> assert(failed[me] || ran[p]); p++
    :: else -> break
    od
  }
dead:
  skip
}

inline Append(at, kind) {
  d_step {
    if
    :: log_kind[at] == EMPTY -> log_kind[at] = kind
    :: else -> skip
    fi
  }
}

proctype Engine(byte me) {
  byte i = 0;
  bool tried = false, released = false;

  if
  :: crashes < 1 -> d_step { crashes++; crashed[me] = true; gone = gone | ME; still = still | ME }; goto over
  :: pushed = pushed | ME
  fi;
  do
  :: broken -> goto breaking
  :: done[me] -> goto over
  :: crashes < 1 -> d_step { crashes++; crashed[me] = true; gone = gone | ME; still = still | ME }; goto over
  :: log_kind[0] == EMPTY && pushed == ALL -> Append(0, PARK)
  :: log_kind[0] == PARK && !enqueued[me] -> enqueued[me] = true
  :: enqueued[me] && request[me] && !(arrived & ME) && !(held & ME) -> arrived = arrived | ME
  :: (arrived & ME) && arrived != ALL && log_kind[1] == EMPTY ->
     Append(1, CANCEL)                                    /* the deadline may pass at any moment */
  :: log_kind[1] == CANCEL && enqueued[me] && !(arrived & ME) && !tried ->
     tried = true;
     permit[me] = false;
     if
#ifndef MUTANT_HOLD_WITHOUT_LOOK
     :: passed[me] -> permit[me] = true                   /* too late: it has arrived */
     :: !passed[me] -> held = held | ME
#else
     :: held = held | ME
#endif
     fi
  :: log_kind[1] == CANCEL && enqueued[me] && held != 0 && !(acked & ME) ->
     failed[me] = true;
     guard[me] = true;
     acked = acked | ME
#ifndef MUTANT_RELEASE_WITHOUT_ACKS
  :: (held & ME) && acked == ALL && !released ->
#else
  :: (held & ME) && (acked & ME) && !released ->
#endif
     released = true;
     request[me] = true;
     permit[me] = true
  od;

breaking:
  /* Status first, on all engines; then the guard; and only then what lets the lane go. */
  if
  :: done[me] -> goto over
  :: else -> failed[me] = true
  fi;
  gone = gone | ME;
  if
  :: !enqueued[me] -> unused[me] = true; still = still | ME; goto over
  :: else -> skip
  fi;
#ifndef MUTANT_BREAK_AT_ONCE
  do
  :: i == N -> break
  :: i < N && ((gone & (1 << i)) || done[i]) -> i++
  od;
#endif
  guard[me] = true;
  still = still | ME;
#ifndef MUTANT_BREAK_WITH_ONE_LOOK
  i = 0;
  do
  :: i == N -> break
  :: i < N && ((still & (1 << i)) || done[i]) -> i++
  od;
#endif
  poison[me] = true;
  request[me] = true;
  permit[me] = true;
  done[me];
over:
  skip
}

proctype Tandemd() {
  /* Breaks the group if an engine has died, or a client, at any moment; ends when all are through. */
  if
  :: true -> broken = true
  :: done[0] && done[N - 1] && done[N / 2] -> skip
  fi
}

init {
  byte r;
  atomic {
    r = 0;
    do
    :: r < N -> permit[r] = true; run Stream(r); run Lane(r); run Engine(r); r++
    :: else -> break
    od;
    run Tandemd()
  }
}
