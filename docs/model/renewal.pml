/* Renewal: launches on the ranks' own streams have failed, and all ranks go on with the same memory.
 *
 * N ranks make up to CALLS launches each, as late as they like, and then renew. A launch e is counter + 1. It sends each
 * peer data with a word of e, and a packet without a number. It waits for both of each peer, or gives up.
 * Behind the renewal each rank makes AFTER launches, and none may fail.
 *
 *   launch   data, word and packet to each peer · wait for each peer's · empty the packet's slot · counter = e
 *   give up  failed · tandemd sets abort of all ranks, unless they have renewed since
 *   renew    stopped: wait for all · counter = highest of all + SKIP · empty all slots · failed = 0
 *            ready: wait for all; with the last one tandemd clears abort of all ranks
 *
 * Checked:
 *   order     a packet goes into an empty slot (assert in Send)
 *   data      data and packet are of this very launch (asserts in Await and Take)
 *   numbers   no word is more than one launch ahead of its reader (assert in Await)
 *   renewed   no launch behind the renewal fails (asserts in Await and Take)
 *   liveness  every rank ends (no invalid end state)
 *
 * Design: docs/client-placement.md, Renewal.
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef AFTER
#define AFTER 2
#endif

#ifdef MUTANT_SAME_NUMBER
#define SKIP 0
#else
#define SKIP 2
#endif
#define WORD(reader, writer) ((reader) * N + (writer))
/* A launch behind the renewal is another one, whatever its number. */
#define ID (again -> 100 + e : e)
#define SLOT(reader, writer) (WORD(reader, writer) * 2 + (e & 1))

byte counter[N];        /* private: launches finished */
bool failed[N];         /* private */
byte word[N * N];       /* shared, one writer each */
byte data[N * N * 2];   /* behind a word, two halves: the launch that wrote it */
byte slot[N * N * 2];   /* 0, or the launch whose packet lies there: history, for a kernel sees that it is not 0 */
bool abort[N];          /* verdict page */
bool reported = false;  /* tandemd must stall the group */
bool renewed = false;
byte highest = 0;       /* of the ranks that have stopped */
byte at_rest = 0, ready = 0;

inline Send(peer) {
  d_step {
    assert(slot[SLOT(peer, me)] == 0);
    slot[SLOT(peer, me)] = ID
  }
  data[SLOT(peer, me)] = ID;
  word[WORD(peer, me)] = e
}

/* Both set gave_up if the wait ends without the peer. */
inline Await(peer) {
  if
  :: d_step {
       word[WORD(me, peer)] >= e ->
       assert(word[WORD(me, peer)] <= e + 1);
       assert(data[SLOT(me, peer)] == ID)
     }
  :: d_step { abort[me] -> assert(!again); gave_up = true }
  :: !again -> gave_up = true  /* the deadline */
  fi
}

inline Take(peer) {
  if
  :: gave_up -> skip
  :: d_step {
       !gave_up && slot[SLOT(me, peer)] != 0 ->
       assert(slot[SLOT(me, peer)] == ID);
       slot[SLOT(me, peer)] = 0
     }
  :: d_step { !gave_up && abort[me] -> assert(!again); gave_up = true }
  :: !gave_up && !again -> gave_up = true
  fi
}

inline Launch() {
  e = counter[me] + 1;
  p = 0;
  do
  :: p == me -> p++
  :: p == N -> break
  :: p < N && p != me -> Send(p); p++
  od;
  p = 0;
  do
  :: p == me -> p++
  :: p == N || gave_up -> break
  :: p < N && p != me && !gave_up -> Await(p); Take(p); p++
  od;
  if
  :: gave_up -> failed[me] = true; reported = true
  :: else -> counter[me] = e
  fi;
  e = 0
}

inline Empty() {
  p = 0;
  do
  :: p == N -> break
  :: p < N ->
     d_step { slot[WORD(me, p) * 2] = 0; slot[WORD(me, p) * 2 + 1] = 0; p++ }
  od
}

proctype Rank(byte me) {
  byte n = 0, e = 0, p = 0;
  bool gave_up = false, again = false;

  do
  :: n == CALLS || failed[me] -> break
  :: n < CALLS && !failed[me] -> Launch(); n++
  :: n < CALLS && !failed[me] -> break  /* it comes too late for the others */
  od;

#ifdef MUTANT_EMPTY_EARLY
  Empty();
#endif
  skip;
  d_step {
    highest = (counter[me] > highest -> counter[me] : highest);
    at_rest++
  }
#ifndef MUTANT_NO_STOP
  at_rest == N;
#endif
  counter[me] = highest + SKIP;
#ifndef MUTANT_EMPTY_EARLY
#ifndef MUTANT_KEEP_PACKETS
  Empty();
#endif
#endif
  skip;
  d_step { failed[me] = false; gave_up = false }
  d_step {
    ready++;
    if
    :: ready == N ->
       renewed = true;
       p = 0;
       do
       :: p == N -> break
       :: p < N -> abort[p] = false; p++
       od
    :: else -> skip
    fi
  }
#ifndef MUTANT_NO_READY
  ready == N;
#endif

  n = 0;
  again = true;
  do
  :: n == AFTER -> break
  :: n < AFTER -> Launch(); n++
  od
}

proctype Tandemd() {
  byte p = 0;
end_serving:
  do
  :: d_step {
       reported && !renewed && !abort[0] ->
       p = 0;
       do
       :: p == N -> break
       :: p < N -> abort[p] = true; p++
       od
     }
  od
}

init {
  byte r = 0;
  atomic {
    do
    :: r == N -> break
    :: r < N -> run Rank(r); r++
    od;
    run Tandemd()
  }
}
