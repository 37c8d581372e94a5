/* Dense packets: a slot in the reader's memory holds nothing (0) or a packet, and no number. The writer fills it in one
 * store, the reader empties it in another.
 *
 * N ranks make the same CALLS calls, each on one stream. A kernel begins when all blocks of the rank's previous kernel
 * have ended. Kinds are free, and the same on all ranks:
 *
 *   SUM    all B blocks: a packet to each peer; take each peer's packet and empty its slot
 *   OTHER  block 0: a word with the number to each peer; wait for each peer's
 *
 * The number of call e chooses the half e & 1 of the slots.
 *
 * Checked:
 *   order     a packet goes into an empty slot (assert in Send)
 *   data      a packet that is taken is of this very call (assert in Take)
 *   liveness  every block ends (no invalid end state)
 *
 * Design: docs/algorithms.md, low_latency; docs/client-placement-safety.md.
 */
#ifndef N
#define N 2
#endif
#ifndef B
#define B 2
#endif
#ifndef CALLS
#define CALLS 4
#endif

#define OTHER 0
#define SUM 1

#ifdef MUTANT_ONE_HALF
#define HALF(call) 0
#else
#define HALF(call) ((call) & 1)
#endif
#define SLOT(reader, writer, call) ((((reader) * N + (writer)) * 2 + HALF(call)) * B + b)
#define WORD(reader, writer) ((reader) * N + (writer))

byte kind[CALLS + 1];
byte ended[N];              /* blocks that have ended, of all the rank's kernels */
byte slot[N * N * 2 * B];   /* 0, or the call whose packet lies there: history, for a kernel sees that it is not 0 */
byte word[N * N];

inline Send(i) {
  d_step {
    assert(slot[i] == 0);
    slot[i] = e
  }
}

inline Take(i) {
  d_step {
    slot[i] != 0 ->
    assert(slot[i] == e)
  }
#ifndef MUTANT_EMPTY_NEXT_TIME
  slot[i] = 0
#endif
}

proctype Block(byte me; byte b) {
  byte e = 0, p = 0;

  do
  :: e == CALLS -> break
  :: e < CALLS ->
     ended[me] >= e * B;
     e++;
     if
     :: kind[e] == SUM ->
        p = 0;
        do
        :: p == N -> break
        :: p < N && p != me -> Send(SLOT(p, me, e)); p++
        :: p == me -> p++
        od;
#ifdef MUTANT_EMPTY_NEXT_TIME
        /* Of the call before, behind the own packets: the peers may be in the next call already. */
        p = 0;
        do
        :: p == N -> break
        :: p < N && p != me -> slot[SLOT(me, p, e - 1)] = 0; p++
        :: p == me -> p++
        od;
#endif
        p = 0;
        do
        :: p == N -> break
        :: p < N && p != me -> Take(SLOT(me, p, e)); p++
        :: p == me -> p++
        od
     :: kind[e] == OTHER && b == 0 ->
        p = 0;
        do
        :: p == N -> break
        :: p < N && p != me -> word[WORD(p, me)] = e; p++
        :: p == me -> p++
        od;
#ifndef MUTANT_OPEN
        p = 0;
        do
        :: p == N -> break
        :: p < N && p != me -> word[WORD(me, p)] >= e; p++
        :: p == me -> p++
        od
#endif
     :: kind[e] == OTHER && b != 0 -> skip
     fi;
     ended[me]++
  od
}

init {
  byte i = 1, j = 0;
  atomic {
    do
    :: i > CALLS -> break
    :: i <= CALLS -> kind[i] = SUM; i++
    :: i <= CALLS -> kind[i] = OTHER; i++
    od;
    i = 0;
    do
    :: i == N -> break
    :: i < N ->
       j = 0;
       do
       :: j == B -> break
       :: j < B -> run Block(i, j); j++
       od;
       i++
    od
  }
}
