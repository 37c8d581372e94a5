/* The launch queue's protocol: arrivals, the order log, failure by deadline, break, and crashes at every step.
 *
 * N engines serve one plan over LAUNCHES launches. Each step of an engine is one shared-memory access, as in the code:
 * engine/launch/launch_queue.cc (Arrive), launch_decide.cc (DrainLog, AppendStarts, AppendFailure), ipc/arrival_table.h,
 * ipc/order_log.h. An engine may crash before any step; then tandemd breaks the group by commands to all engines, for which
 * an entry BREAK stands here.
 *
 * Checked:
 *   agreement   no two engines take different decisions for one launch (assert in Take)
 *   no START without all arrivals (assert in Take)
 *   liveness    every engine that lives reaches its end: no launch stays undecided (no invalid end states)
 */
#ifndef N
#define N 2
#endif
#ifndef LAUNCHES
#define LAUNCHES 2
#endif
#define SLOTS 12

#define EMPTY 0
#define START 1
#define FAIL 2
#define BREAK 3

byte count[N];              /* arrival table: the launch that rank i has arrived at */
byte log_kind[SLOTS];       /* order log; a slot is written once, by compare-and-swap */
byte log_launch[SLOTS];
byte decision[LAUNCHES + 1];  /* history variable: the first decision that anybody took */
bool crashed[N];
byte crashes = 0;

/* One compare-and-swap: claims and publishes. */
inline Append(pos, kind, launch, won) {
  d_step {
    if
    :: log_kind[pos] == EMPTY -> log_kind[pos] = kind; log_launch[pos] = launch; won = true
    :: else -> won = false
    fi
  }
}

/* An engine acts on a log entry for its own launch. */
inline Take(launch, kind) {
  d_step {
    assert(decision[launch] == EMPTY || decision[launch] == kind);
    decision[launch] = kind;
    if
    :: kind == START ->
       r = 0;
       do
       :: r < N -> assert(count[r] >= launch); r++
       :: else -> break
       od;
       r = 0
    :: else -> skip
    fi
  }
}

inline MayCrash() {
  if
  :: crashes < 1 -> crashes++; crashed[me] = true; goto dead
  :: skip
  fi
}

proctype Engine(byte me) {
  byte k = 0;        /* own launch */
  byte pos = 0;      /* read position */
  byte r, seen;
  bool won, broken, decided;
  byte early[LAUNCHES + 1];  /* failures read before the own arrival */

next:
  if
  :: broken || k == LAUNCHES -> goto finished
  :: else -> k++
  fi;
  /* The log is read whether or not the own stream has arrived: failures of launches to come are remembered. */
  do
  :: log_kind[pos] != EMPTY ->
     if
     :: log_kind[pos] == BREAK -> pos++; goto finished
     :: log_kind[pos] == FAIL && log_launch[pos] >= k -> early[log_launch[pos]] = FAIL
     :: else -> skip
     fi;
     pos++
  :: break
  od;
  if
  :: early[k] == FAIL -> Take(k, FAIL); count[me] = k; goto next
  :: else -> skip
  fi;
  MayCrash();
  count[me] = k;     /* digest, then count: one word decides */
  MayCrash();
  decided = false;
  do
  :: decided -> break
  :: !decided && log_kind[pos] != EMPTY ->   /* DrainLog: one entry */
     if
     :: log_kind[pos] == BREAK -> broken = true; decided = true
     :: log_kind[pos] != BREAK && log_launch[pos] == k -> Take(k, log_kind[pos]); decided = true
     :: log_kind[pos] == FAIL && log_launch[pos] > k -> early[log_launch[pos]] = FAIL
     :: else -> skip
     fi;
     pos++
  :: !decided && log_kind[pos] == EMPTY ->
     /* Look at the others one after another; then append at the position that was empty. */
     seen = 0;
     r = 0;
     do
     :: r < N -> if :: count[r] >= k -> seen++ :: else -> skip fi; r++
     :: else -> break
     od;
     r = 0;
     MayCrash();
#ifdef MUTANT_UNREAD_APPEND
     /* Wrong on purpose: appends at the head without having read what others appended meanwhile. */
     do
     :: log_kind[pos] != EMPTY -> pos++
     :: else -> break
     od;
     won = false;
     if
     :: seen == N -> Append(pos, START, k, won); if :: won -> Take(k, START); decided = true :: else -> skip fi
     :: seen < N -> Append(pos, FAIL, k, won); if :: won -> Take(k, FAIL); decided = true :: else -> skip fi
     fi
#else
     if
     :: seen == N -> Append(pos, START, k, won)
     :: seen < N -> Append(pos, FAIL, k, won)   /* the deadline may pass at any moment */
     :: seen < N -> skip                        /* or not yet */
     fi
#endif
  od;
  goto next;

dead:
  skip;
finished:
  skip
}

/* tandemd: appends BREAK for a dead engine at the head, racing with the engines. */
proctype Tandemd() {
  byte pos = 0;
  bool won = false;
  (crashes > 0 || (_nr_pr == 2));
  if
  :: crashes == 0 -> goto over
  :: else -> skip
  fi;
  do
  :: won -> break
  :: !won && log_kind[pos] != EMPTY -> pos++
  :: !won && log_kind[pos] == EMPTY -> Append(pos, BREAK, 0, won)
  od;
over:
  skip
}

init {
  byte i;
  atomic {
    run Tandemd();
    i = 0;
    do
    :: i < N -> run Engine(i); i++
    :: else -> break
    od
  }
}
