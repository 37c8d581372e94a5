/* Client placement: launches are numbered by counters on the device, and nothing starts them but their own streams.
 *
 * N ranks make the same calls, each on one stream. A kernel has B blocks, a process each. Every access to memory that
 * another block or rank uses is a step. A kernel begins when all blocks of the rank's previous kernel have ended.
 *
 *   TWO     all blocks, two phases: data and a word to each peer; wait for the peers' words; read their data.
 *           Before the second phase the last block also needs a partial result of each other block.
 *   ONE     one block, one phase
 *   LOCAL   touches no peer and does not count
 *
 *   block   e = own counter + 1 · failed: end · phases in half e & 1 · store e for all grids · end
 *   wait    a word of e or e + 1. Or give up: 0 < first_aborted_launch <= e, failed, another call's tag, the deadline
 *
 * tandemd sets first_aborted_launch of all ranks to 1 after a report, a death or a refused launch. After a clean leave
 * it sets first_aborted_launch of the others to the leaver's last number + 1.
 *
 * Checked:
 *   numbers    all blocks of all ranks give a call the same number (assert in Block)
 *   data       a block whose wait was met finds the data of this very call (assert in Read)
 *   skew       no word is more than one launch ahead of its reader (assert in Await)
 *   leave      a clean leave cuts off no launch that the leaver has finished (assert in Await)
 *   liveness   every block of a living rank ends (no invalid end state)
 *
 * Scenarios: DEADLINES=n (so many waits may be too long), DIES (the last rank, at any moment), REFUSES (rank 0 cannot make
 * one of its calls), LEAVES (the last rank makes fewer calls), ORDERS (rank 0 swaps its first two calls).
 * Design: docs/client-placement-safety.md.
 */
#ifndef N
#define N 2
#endif
#ifndef B
#define B 2
#endif
#ifndef CALLS
#define CALLS 3
#endif

#ifndef DEADLINES
#define DEADLINES 0
#endif

#define LOCAL 0
#define ONE 1
#define TWO 2
#define LAST (N - 1)

/* Of the writer's block b at the reader. A value is number or call * 4 + kind; the kind is the tag. */
#define WORD(reader, writer) ((((reader) * N + (writer)) * 2 + phase) * B + b)
#define DATA(reader, writer) (WORD(reader, writer) * 2 + (e & 1))
#define GARBAGE 255

byte kind[N * CALLS];          /* by rank, in the order of the rank's calls */
byte calls[N];                 /* how many the rank makes */
byte uncounted = 0;            /* the call of rank 0 that MUTANT_REFUSED_UNCOUNTED leaves out */
byte ended[N];                 /* blocks that have ended, of all the rank's kernels */
byte counter[N * B];           /* private: launches finished, as each block sees them */
bool failed[N];                /* private, and the report page */
byte partial[N * B];           /* private: the call whose partial result block b has delivered */
bool rotten[N * B];            /* history: a block that had given up computed it */
byte word[N * N * 2 * B];      /* shared, one writer each */
byte data[N * N * 2 * B * 2];  /* shared, two halves */
byte first_aborted_launch[N];            /* verdict page */
bool dead[N];
byte left_at = 255;            /* history: the leaver's last number */
bool reported = false;         /* tandemd must break the group */
byte deadlines = 0;            /* that have passed */
bool faulty = false;           /* history: a deadline has passed, or a rank has died */
bool odd = false;              /* history: a call is refused, or orders differ */

inline Await(i) {
  if
  :: dead[me] -> goto over
  :: d_step {
       (word[i] >> 2) >= e ->
       if
       :: (word[i] >> 2) == e && (word[i] & 3) != what ->
#ifndef MUTANT_NO_TAGS
          gave_up = true;
#endif
          assert(odd || faulty)
       :: else ->
          assert(odd || (word[i] >> 2) <= e + 1);
          gave_up = gave_up || (word[i] >> 2) > e + 1
       fi
     }
  :: d_step {
       first_aborted_launch[me] != 0 && first_aborted_launch[me] <= e ->
       gave_up = true;
       assert(odd || faulty || e > left_at)
     }
  :: failed[me] -> gave_up = true
  :: d_step { deadlines < DEADLINES -> deadlines++; faulty = true; gave_up = true; late = true }
  fi
}

inline Read(i) {
  if
  :: !gave_up -> assert(data[i] == k * 4 + what)
  :: else -> skip
  fi
}

proctype Block(byte me; byte b) {
  byte n = 0, k = 0;  /* calls so far, and those that count: history but for the stream's order */
  byte e = 0, p = 0, phase = 0, what = 0;
  bool gave_up = false, late = false, idle = false, counts = false;

  do
  :: n == calls[me] -> break
  :: n < calls[me] ->
     /* The stream lets the kernel begin; the block reads private memory. */
     if
     :: dead[me] -> goto over
     :: d_step {
          ended[me] >= n * B ->
          what = kind[me * CALLS + n];
          n++;
#ifdef MUTANT_ONE_COUNTER
          e = counter[me * B] + 1;
#else
          e = counter[me * B + b] + 1;
#endif
          if
#ifdef MUTANT_COUNT_OPEN
          :: true -> k++
#else
          :: what != LOCAL -> k++
          :: else -> skip
#endif
          fi;
          if
          :: what == LOCAL || (what == ONE && b > 0) || (me == 0 && n == uncounted) || failed[me] -> idle = true
          :: else -> skip
          fi;
          assert(idle || odd || e == k)
#ifdef MUTANT_COUNT_OPEN
          ; counts = what == LOCAL && !failed[me]  /* counts, although it has met nobody */
#endif
        }
     fi;
     if
     :: idle -> goto end_kernel
     :: else -> skip
     fi;
     do
     :: phase == what -> break
     :: phase < what ->
        if
        :: phase == 1 && b < B - 1 -> partial[me * B + b] = k
        :: phase == 1 && b == B - 1 ->
           p = 0;
           do
           :: p == B - 1 || gave_up -> break
           :: p < B - 1 && dead[me] -> goto over
           :: p < B - 1 && !gave_up && partial[me * B + p] == k -> assert(!rotten[me * B + p]); p++
#ifndef MUTANT_BLIND_FINISHER
           :: p < B - 1 && !gave_up && failed[me] -> gave_up = true
#endif
           od
        :: else -> skip
        fi;
        if
        :: gave_up -> goto end_kernel
        :: else -> skip
        fi;
publish:
        p = 0;
        do
        :: p == me -> p++
        :: p == N -> break
        :: p < N && p != me && dead[me] -> goto over
        :: p < N && p != me && !dead[me] ->
           d_step {
             data[DATA(p, me)] = (gave_up -> GARBAGE : k * 4 + what);
             word[WORD(p, me)] = e * 4 + what;
             p++
           }
        od;
        p = 0;
        do
        :: p == me -> p++
        :: p == N || gave_up -> break
        :: p < N && p != me && !gave_up -> Await(WORD(me, p)); Read(DATA(me, p)); p++
        od;
        if
        :: gave_up ->
#ifdef MUTANT_GO_ON_AFTER_DEADLINE
           if
           :: late -> counts = true; goto end_kernel  /* the launch has failed, and the group goes on */
           :: else -> skip
           fi;
#endif
           failed[me] = true;
           reported = true;
#ifdef MUTANT_PUBLISH_AFTER_GIVE_UP
           if
           :: phase + 1 < what -> phase++; goto publish
           :: else -> skip
           fi;
#endif
#ifdef MUTANT_PARTIAL_AFTER_GIVE_UP
           if
           :: phase + 1 < what && b < B - 1 -> d_step { partial[me * B + b] = k; rotten[me * B + b] = true }
           :: else -> skip
           fi;
#endif
           goto end_kernel
        :: else -> skip
        fi;
        phase++
     od;
     counts = !gave_up;
end_kernel:
     skip;
     d_step {
       /* Block b stands for b, b + G, …, so that the next grid may have any size. */
       if
       :: counts ->
          counter[me * B + b] = e;
#ifndef MUTANT_OWN_SLOT_ONLY
          p = 1;
          do
          :: what == ONE && p < B -> counter[me * B + p] = e; p++
          :: else -> break
          od
#endif
       :: else -> skip
       fi;
       e = 0; p = 0; phase = 0; what = 0; gave_up = false; late = false; idle = false; counts = false;
       ended[me]++
     }
  od;
over:
  skip
}

proctype Tandemd() {
  byte p = 0;
  bool broken = false;
end_serving:
  do
  :: reported && !broken ->
     broken = true;
     p = 0;
     do
     :: p < N -> first_aborted_launch[p] = 1; p++
     :: p == N -> break
     od
#ifdef LEAVES
  :: !broken && left_at == 255 && ended[LAST] == calls[LAST] * B && !failed[LAST] && !dead[LAST] ->
     left_at = counter[LAST * B];
     p = 0;
     do
     :: p < LAST ->
#ifdef MUTANT_UNBOUNDED_LEAVE
        first_aborted_launch[p] = 1;
#else
        first_aborted_launch[p] = left_at + 1;
#endif
        p++
     :: p == LAST -> break
     od
#endif
  od
}

/* Kills the last rank at any moment, or never. */
proctype Killer() {
  if
  :: d_step { faulty = true; dead[LAST] = true };
     reported = true
  :: skip
  fi
}

/* Rank 0's launch is refused some time after its last call. */
proctype Refusal() {
  reported = true
}

init {
  byte r = 0, i = 0;
  d_step {
    do
    :: r < N -> calls[r] = CALLS; r++
    :: r == N -> break
    od;
    r = 0
  }
#ifdef LEAVES
  if
  :: calls[LAST] = CALLS - 1
  :: calls[LAST] = CALLS - 2
  fi;
#endif
#ifdef REFUSES
  odd = true;
  do
  :: i < CALLS - 1 -> i++
  :: break
  od;
#ifdef MUTANT_REFUSED_UNCOUNTED
  uncounted = i + 1;
#else
  calls[0] = i;
  run Refusal();
#endif
  i = 0;
#endif
  do
  :: i < CALLS ->
     if
     :: kind[i] = TWO
#ifndef ONE_KIND
     :: kind[i] = ONE
     :: kind[i] = LOCAL
#endif
     fi;
     d_step {
       r = 1;
       do
       :: r < N -> kind[r * CALLS + i] = kind[i]; r++
       :: r == N -> break
       od
     }
     i++
  :: i == CALLS -> break
  od;
#ifdef ORDERS
  skip;
  d_step { odd = kind[0] != kind[1]; r = kind[0]; kind[0] = kind[1]; kind[1] = r }
#endif
  atomic {
    r = 0;
    do
    :: r < N ->
       i = 0;
       do
       :: i < B -> run Block(r, i); i++
       :: i == B -> break
       od;
       r++
    :: r == N -> break
    od;
    run Tandemd()
#ifdef DIES
    ; run Killer()
#endif
  }
}
