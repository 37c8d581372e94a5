/* Asked suspension: an operator asks a job to suspend its groups, and its ranks do it before the same step.
 *
 * N ranks make LAST steps. In a step a rank launches, and then waits for all ranks' launches of the step, or runs ahead. The
 * library of each rank has a thread, which hears of the request whatever the program does.
 *
 *   thread    freeze the number of the last step that the program has begun · tell it to tandemd
 *   tandemd   with the last number: the step behind the largest is the one to sleep at
 *   program   before a step, frozen: wait for that step's number. At that step: arrive, wait for all, sleep
 *
 * With WITHDRAWS the operator may give up at any time before all have arrived. With DIES rank 0 may end before any step.
 * Then tandemd withdraws the request.
 *
 * Checked:
 *   same      ranks that sleep are before the same step (assert in Sleep)
 *   quiet     no launch waits for a rank that sleeps (assert in Sleep)
 *   together  where one rank sleeps for the request, all living ranks do (assert in GoOn)
 *   liveness  every living rank ends (no invalid end state)
 *
 * Design: docs/suspend.md.
 */
#ifndef N
#define N 2
#endif
#ifndef LAST
#define LAST 3
#endif

#define NONE 0
#define SLEEP 1
#define WITHDRAWN 2

byte begun[N];         /* the last step that the program has begun */
byte launched[N];      /* the last step whose launch the rank has made */
bool frozen[N];        /* the rank's number is told, or about to be */
bool asked = false;
byte told = 0;         /* ranks whose number tandemd has */
byte most = 0;         /* the largest */
byte target = 0;       /* the step to sleep at; 0: not known */
byte arrived = 0;
byte verdict = NONE;
bool sleeps[N];
bool dead[N];
bool broken = false;

inline Withdraw() {
  if
  :: verdict == NONE -> verdict = WITHDRAWN
  :: else -> skip
  fi
}

inline Tell(number) {
  d_step {
    if
    :: number > most -> most = number
    :: else -> skip
    fi;
    told++;
    if
#ifdef MUTANT_LARGEST
    :: told == N -> target = most
#else
    :: told == N -> target = most + 1
#endif
    :: else -> skip
    fi
  }
}

proctype Library(byte me) {
  byte number;
  asked || verdict == WITHDRAWN;
#ifndef MUTANT_PROGRAM_ANSWERS
  d_step {
    number = begun[me];
#ifndef MUTANT_NO_FREEZE
    frozen[me] = true
#endif
  }
  Tell(number);
#endif
#ifdef MUTANT_NO_FREEZE
  target != 0 || verdict == WITHDRAWN -> frozen[me] = true
#endif
}

/* Before the step begun[me] + 1. */
inline Sleep() {
  d_step {
    arrived++;
#ifdef MUTANT_NO_ARRIVED
    sleeps[me] = true;
#endif
    if
    :: arrived == N && verdict == NONE -> verdict = SLEEP
    :: else -> skip
    fi
  }
  verdict != NONE;
  if
  :: verdict == SLEEP ->
     d_step {
       p = 0;
       do
       :: p == N -> break
       :: p < N ->
          assert(dead[p] || (begun[p] == begun[me] && launched[p] == begun[me]));
          p++
       od;
       sleeps[me] = true
     };
     over = true
  :: verdict == WITHDRAWN -> GoOn()
  fi
}

/* The request is withdrawn. */
inline GoOn() {
  d_step {
    p = 0;
    do
    :: p == N -> break
    :: p < N -> assert(!sleeps[p]); p++
    od;
    begun[me]++
  }
}

inline Step() {
  launched[me] = begun[me];
  if
  :: true ->  /* the program waits for the step */
     p = 0;
     do
     :: p == N -> break
     :: p < N -> (launched[p] >= begun[me] || broken || dead[p]); p++
     od
  :: true -> skip
  fi
}

proctype Rank(byte me) {
  byte p;
  bool over = false;
  do
  :: over || broken -> break
  :: !over && begun[me] == LAST && verdict == WITHDRAWN -> break
  :: !over ->
#ifdef DIES
     if
     :: me == 0 ->
        d_step { dead[me] = true; broken = true; Withdraw() };
        break
     :: true -> skip
     fi;
#endif
#ifdef MUTANT_PROGRAM_ANSWERS
     if
     :: asked && !frozen[me] -> frozen[me] = true; Tell(begun[me])
     :: !asked || frozen[me] -> skip
     fi;
#endif
     if
     :: atomic { !frozen[me] && begun[me] < LAST -> begun[me]++ }; Step()
     :: frozen[me] && verdict == WITHDRAWN && begun[me] < LAST -> GoOn(); Step()
     :: frozen[me] && verdict == WITHDRAWN && begun[me] == LAST -> break
     :: frozen[me] && target != 0 && begun[me] + 1 < target -> begun[me]++; Step()
     :: frozen[me] && target != 0 && begun[me] + 1 >= target ->
        Sleep();
        if
        :: !over && begun[me] <= LAST -> Step()
        :: else -> skip
        fi;
        if
        :: begun[me] > LAST -> break
        :: else -> skip
        fi
     :: begun[me] == LAST && !frozen[me] && (asked || verdict == WITHDRAWN) -> skip
     :: broken -> break
     fi
  od
}

proctype Operator() {
  asked = true;
#ifdef WITHDRAWS
  if
  :: d_step { Withdraw() }
  :: true -> skip
  fi
#endif
}

init {
  byte i;
  atomic {
    for (i : 0 .. N - 1) {
      run Rank(i);
      run Library(i)
    };
    run Operator()
  }
}
