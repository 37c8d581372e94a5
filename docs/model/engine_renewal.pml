/* Renewal on engines: a launch that a rank misses has stalled the group, and all ranks go on with the same plans.
 *
 * N ranks make up to CALLS launches each and then renew the group, each whenever it likes: a rank may skip launches, or ask for
 * the renewal before anything has failed. Then each makes AFTER launches, and none may fail. All of that ROUNDS times.
 * A launch goes by the rank's ring, and the rank waits for its end; or by gRPC, and nobody waits.
 *
 *   launch   count + 1, published in the arrival table · all ranks are at this count: START in the log · its program ends once
 *            all ranks' programs have begun
 *   stall    a deadline, or STALL of tandemd's: an entry in the log, at the position that was read as empty. Who reads it ends
 *            what waits, and refuses launches until RESUME
 *   renew    STALL to the engine of each rank that asks. Once all have asked: a ping to all · STOP to one engine after the other,
 *            answered without a launch under way · RESUME to all: read the log, count = highest of all ranks, launches may begin.
 *            Ranks hear of it when all have answered
 *
 * Code: engine/launch/launch_desync.cc, launch_decide.cc, daemon/control/client_groups/renewal_service.cc, and
 * GroupHandle::MeetForRenewal for the rank.
 *
 * Checked:
 *   pairing   a launch behind a renewal starts with the same launch of all ranks (assert in Append)
 *   renewed   no launch behind a renewal fails (assert in Rank)
 *   liveness  every rank ends, without any deadline too (no invalid end state)
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef AFTER
#define AFTER 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEADLINES
#define DEADLINES 1
#endif

#define ENTRIES (ROUNDS * (CALLS + AFTER + 2))
#define STALLED 255 /* an entry; others are START of a count */
#define BEHIND 100  /* the least name of a launch behind a renewal */

byte log[ENTRIES], log_length;
byte count[N];    /* arrival table */
byte program[N];  /* count of the last launch whose program this rank has begun */
byte name[N];     /* history: which launch of its rank's own an engine is at */
byte ring[N];     /* the name of a launch in the ring; 0: none */
byte ended[N];    /* the name of the last launch by the ring that has ended */
bool right[N];    /* and whether with OK */
byte asked[N];    /* the last renewal that this rank has asked for */
byte renewed = 0; /* the last renewal that ranks have heard of */
bool stop[N], stopped[N];
byte pinged = 0, resumed = 0;
byte deadlines = DEADLINES;

mtype = { LAUNCH, STALL, PING, RESUME }
chan mailbox[N] = [4] of { mtype, byte };

inline Result(ok) {
  if
  :: by_ring -> ended[me] = name[me]; right[me] = ok
  :: else -> skip
  fi
}

/* The launch `next`, by the ring or by gRPC. Several launches under way: the later one fails. */
inline Arrive(next, way) {
  d_step {
    if
    :: stalled || at != 0 ->
       if
       :: way -> ended[me] = next; right[me] = false
       :: else -> skip
       fi
    :: else -> own++; at = own; begun = false; by_ring = way; name[me] = next; count[me] = own
    fi
  }
}

inline Read() {
  d_step {
    if
    :: log[read] == STALLED ->
       stalled = true;
       if
       :: at != 0 && !begun -> at = 0; Result(false)
       :: else -> skip
       fi
    :: log[read] == at && !begun && !stalled -> begun = true; program[me] = at
    :: else -> skip
    fi;
    read++
  }
}

#define HAS_READ (read == log_length)
#ifdef MUTANT_STOP_BUSY
#define IDLE true
#else
#define IDLE (at == 0)
#endif
#define WAITS (at != 0 && !begun && !stalled)

proctype Engine(byte me) {
  byte own = 0, read = 0, at = 0, next = 0, p = 0;
  bool begun = false, by_ring = false, stalled = false;

end_idle:
  do
  :: ring[me] != 0 && (at == 0 || !by_ring) ->
     next = ring[me];
     Arrive(next, true);
     ring[me] = 0
  :: read < log_length -> Read()
  :: d_step {
       WAITS && HAS_READ && count[0] == at && count[N - 1] == at && count[N / 2] == at ->
       assert(name[me] < BEHIND || (name[0] == name[me] && name[N - 1] == name[me] && name[N / 2] == name[me]));
       log[log_length] = at;
       log_length++
     }
  :: d_step {
       WAITS && HAS_READ && deadlines > 0 && name[me] < BEHIND ->
       deadlines--;
       log[log_length] = STALLED;
       log_length++
     }
  :: d_step {
       at != 0 && begun && program[0] >= at && program[N - 1] >= at && program[N / 2] >= at ->
       at = 0;
       Result(true)
     }
  :: mailbox[me] ? LAUNCH, next -> Arrive(next, false)
  :: mailbox[me] ? PING, _ -> pinged++
  :: mailbox[me] ? STALL, _ ->
#ifdef MUTANT_STALL_ALONE
     d_step {
       stalled = true;
       if
       :: at != 0 && !begun -> at = 0; Result(false)
       :: else -> skip
       fi
     };
#endif
#ifdef MUTANT_STALL_UNREAD
     d_step {
       if
       :: !stalled ->
          log[log_length] = STALLED;
          log_length++;
          stalled = true;
          if
          :: at != 0 && !begun -> at = 0; Result(false)
          :: else -> skip
          fi
       :: else -> skip
       fi
     };
#endif
     do
     :: stalled -> break
     :: !stalled && !HAS_READ -> Read()
     :: d_step { !stalled && HAS_READ -> log[log_length] = STALLED; log_length++ }
     od
  :: mailbox[me] ? RESUME, _ ->
     do
     :: HAS_READ -> break
     :: !HAS_READ -> Read()
     od;
     p = 0;
     do
     :: p == N -> break
     :: p < N ->
        d_step {
#ifndef MUTANT_OWN_COUNT
          own = (count[p] > own -> count[p] : own);
#endif
          p++
        }
     od;
     count[me] = own;
     stalled = false;
     resumed++
  :: stop[me] && !stopped[me] && !stalled -> stalled = true
  :: d_step { stop[me] && !stopped[me] && stalled && IDLE -> stopped[me] = true }
  od
}

proctype Rank(byte me) {
  byte n = 0, round = 1;
  do
  :: round > ROUNDS -> break
  :: round <= ROUNDS ->
     n = 0;
     do
     :: n < CALLS ->
        ring[me] == 0;
        n++;
        ring[me] = round * 10 + n;
#ifndef MUTANT_NO_AWAIT
        ended[me] == round * 10 + n;
        if
        :: right[me] -> skip
        :: else -> break  /* the group is stalled */
        fi
#endif
     :: n < CALLS -> n++; mailbox[me] ! LAUNCH, round * 10 + n; break
     :: break
     od;
     asked[me] = round;
     renewed == round;
     n = 0;
     do
     :: n == AFTER -> break
     :: n < AFTER ->
        ring[me] == 0;
        n++;
        ring[me] = BEHIND + round * 10 + n;
        ended[me] == BEHIND + round * 10 + n;
        assert(right[me])
     od;
     round++
  od
}

inline ToAll(command) {
  p = 0;
  do
  :: p == N -> break
  :: p < N -> mailbox[p] ! command, 0; p++
  od
}

inline Stall(rank) {
#ifndef MUTANT_NO_STALL
  mailbox[rank] ! STALL, 0;
#endif
  told = told | (1 << rank)
}

proctype Tandemd() {
  byte round = 1, p = 0, told = 0;
  do
  :: round > ROUNDS -> break
  :: round <= ROUNDS ->
     told = 0;
     do
     :: told == (1 << N) - 1 -> break
     :: asked[0] == round && !(told & 1) -> Stall(0)
     :: asked[1] == round && !(told & 2) -> Stall(1)
#if N > 2
     :: asked[2] == round && !(told & 4) -> Stall(2)
#endif
     od;
#ifndef MUTANT_NO_PING
     ToAll(PING);
     skip;
     d_step { pinged == N -> pinged = 0 };
#endif
#ifndef MUTANT_NO_STOP
     p = 0;
     do
     :: p == N -> break
     :: p < N ->
        stop[p] = true;
        d_step { stopped[p] -> stop[p] = false; stopped[p] = false; p++ }
     od;
#endif
     ToAll(RESUME);
#ifndef MUTANT_EARLY_ANSWER
     skip;
     d_step { resumed == N -> resumed = 0 };
#endif
     renewed = round;
     round++
  od
}

init {
  byte r = 0;
  atomic {
    do
    :: r == N -> break
    :: r < N -> run Rank(r); run Engine(r); r++
    od;
    run Tandemd()
  }
}
