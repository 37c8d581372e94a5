/* Suspension: the ranks of a group give up its memory, and map other memory at the same addresses.
 *
 * N ranks make up to CALLS launches, sleep and wake up, ROUNDS times, and then make one launch more. A launch sends each peer
 * a packet, through its own mapping of the peer's memory, and takes each peer's packet out of its own memory. Memory of a
 * rank has a number, 0 while there is none; a mapping has the number of the memory that it was made of, 0 while unmapped.
 *
 *   suspend  stopped: wait for all · unmap everything · unmapped: wait for all; with the last one tandemd drops the memory
 *   resume   resuming: wait for all; with the last one tandemd makes memory · map it · empty the own slots
 *            mapped: wait for all
 *
 * With DIES rank 0 may end in any step. Then tandemd breaks the group, and all others end. With SKIPS it may make a
 * launch less than its peers, which then give up in theirs.
 *
 * Checked:
 *   mapped    a launch goes through mappings of memory that is there (assert in Send, Take)
 *   same      writer and reader have mapped the same memory (assert in Send)
 *   dropped   tandemd drops no memory that a living rank maps (assert in Drop)
 *   order     a packet goes into an empty slot (assert in Send)
 *   liveness  every living rank ends (no invalid end state)
 *
 * Design: docs/suspend.md.
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define PAIR(holder, owner) ((holder) * N + (owner))

byte memory[N];        /* the number of each rank's memory; 0: none */
byte mapped[N * N];    /* PAIR(holder, owner): the number that the holder has mapped; 0: nothing */
bool slot[N * N];      /* PAIR(reader, writer): a packet lies in the reader's memory */
byte made = 1;         /* numbers of memory so far */
byte at[4 * ROUNDS];   /* ranks that have come to each meeting */
bool broken = false;   /* by a rank's death */
bool dead[N];
bool skipped = false;  /* rank 0 makes a launch less than the others */

/* With DIES rank 0 ends in any step: its mappings go with it, and tandemd breaks the group. */
inline MayDie() {
#ifdef DIES
  if
  :: me == 0 && !over ->
     d_step {
       dead[me] = true;
       over = true;
       p = 0;
       do
       :: p == N -> break
       :: p < N -> mapped[PAIR(me, p)] = 0; p++
       od;
       broken = true
     }
  :: true -> skip
  fi
#else
  skip
#endif
}

inline Send(peer) {
  d_step {
    assert(memory[peer] != 0 && mapped[PAIR(me, peer)] == memory[peer]);
    assert(mapped[PAIR(peer, peer)] == memory[peer] || dead[peer]);
    assert(!slot[PAIR(peer, me)]);
    slot[PAIR(peer, me)] = true
  }
}

inline Take(peer) {
  if
  :: d_step {
       slot[PAIR(me, peer)] ->
       assert(memory[me] != 0 && mapped[PAIR(me, me)] == memory[me]);
       slot[PAIR(me, peer)] = false
     }
  :: broken -> over = true
#ifdef SKIPS
  :: d_step { skipped -> over = true; broken = true }  /* the deadline: the group stalls */
#endif
  fi
}

inline Launch() {
  MayDie();
  p = 0;
  do
  :: p == me -> p++
  :: p == N || over -> break
  :: p < N && p != me && !over -> Send(p); p++
  od;
  p = 0;
  do
  :: p == me -> p++
  :: p == N || over -> break
  :: p < N && p != me && !over -> Take(p); p++
  od
}

inline Drop() {
  p = 0;
  do
  :: p == N -> break
  :: p < N ->
     q = 0;
     do
     :: q == N -> break
     :: q < N -> assert(mapped[PAIR(q, p)] == 0 || dead[q]); q++
     od;
     memory[p] = 0;
     p++
  od
}

inline Make() {
  made++;
  p = 0;
  do
  :: p == N -> break
  :: p < N -> memory[p] = made; p++
  od
}

/* The step's meeting; the last rank's call works for all: 1 drops the memory, 2 makes some. */
inline Meet(step, work) {
  MayDie();
  if
  :: over -> skip
  :: else ->
     d_step {
       at[4 * round + step]++;
       if
       :: at[4 * round + step] == N && work == 1 -> Drop()
       :: at[4 * round + step] == N && work == 2 -> Make()
       :: else -> skip
       fi
     };
     if
     :: at[4 * round + step] == N -> skip
     :: broken -> over = true
     fi
  fi
}

inline MapAll(number) {
  p = 0;
  do
  :: p == N -> break
  :: p < N -> d_step { mapped[PAIR(me, p)] = number; p++ }
  od
}

inline Empty() {
  p = 0;
  do
  :: p == N -> break
  :: p < N -> d_step { slot[PAIR(me, p)] = false; p++ }
  od
}

inline Suspend() {
#ifndef MUTANT_NO_STOPPED
  Meet(0, 0);
#endif
  if
  :: over -> skip
  :: else ->
     MapAll(0);
#ifdef MUTANT_NO_UNMAPPED
     atomic {
       at[4 * round + 1]++;
       if
       :: at[4 * round + 1] == 1 -> Drop()
       :: else -> skip
       fi
     }
#else
     Meet(1, 1)
#endif
  fi
}

inline Resume() {
  if
  :: over -> skip
  :: else ->
#ifdef MUTANT_NO_RESUMING
     atomic { Make() }
#else
     Meet(2, 2)
#endif
  fi;
  if
  :: over -> skip
  :: else ->
     p = 0;
     do
     :: p == N -> break
     :: p < N -> d_step { mapped[PAIR(me, p)] = memory[p]; p++ }
     od;
     Empty();
#ifndef MUTANT_NO_MAPPED
     Meet(3, 0)
#endif
  fi
}

proctype Rank(byte me) {
  byte n = 0, p = 0, q = 0, round = 0;
  bool over = false;

  do
  :: over || round == ROUNDS -> break
  :: !over && round < ROUNDS ->
     n = 0;
     do
     :: n == CALLS || over -> break
     :: n < CALLS && !over -> Launch(); n++
#ifdef SKIPS
     :: n < CALLS && !over && me == 0 && !skipped -> skipped = true; n++
#endif
     od;
     if
     :: over -> skip
     :: else -> Suspend(); Resume(); round++
     fi
  od;
  if
  :: over -> skip
  :: else -> Launch()
  fi
}

init {
  byte r = 0, p = 0;
  atomic {
    do
    :: r == N -> break
    :: r < N ->
       memory[r] = 1;
       p = 0;
       do
       :: p == N -> break
       :: p < N -> mapped[PAIR(r, p)] = 1; p++
       od;
       r++
    od;
    r = 0;
    do
    :: r == N -> break
    :: r < N -> run Rank(r); r++
    od
  }
}
