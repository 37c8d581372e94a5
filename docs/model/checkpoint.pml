/* Checkpoint: a session outlives its process, and one process that shows the checkpoint's secret has it again.
 *
 * Process 0 has the session. Whoever has it makes calls, and leaves it up to ROUNDS times. COPIES further processes are
 * restored, each from any checkpoint that there is, at any time; the process that was checkpointed may live on. Every
 * process may end at any time.
 *
 *   leave    begin: a new secret · let go: the session waits; with the answer the process may be checkpointed
 *   restore  token and secret of the checkpoint: a waiting session gets this process and a new token
 *   call     the token of the process
 *
 * Answers may be lost; then the process asks again. With RESTARTS tandemd ends that often, and goes on with what it has
 * saved. With EXPIRES a session that waits may end.
 *
 * Checked:
 *   one       no two living processes have the session (assert in Restore)
 *   newest    who has it is of its last checkpoint (assert in Restore)
 *   served    tandemd serves a call of the process that has it, and of no other (assert in Call)
 *   kept      a process of the last checkpoint is refused only where another one was before it, or the session has ended
 *             (assert in Restore)
 *   ends      a process that ends before it has let go ends the session (assert in Die)
 *   liveness  every process ends (no invalid end state)
 *
 * Design: docs/suspend.md.
 */
#ifndef COPIES
#define COPIES 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif

#define ALL (COPIES + 1)

/* What tandemd knows of the session. */
byte token = 1;
byte before = 0;  /* the token of the last restoration's checkpoint; 0: none */
byte secret = 0;
bool waits = false;
byte owner = 0;
bool ended = false;
/* What it has saved of that. */
byte saved_token = 1, saved_before = 0, saved_secret = 0, saved_owner = 0;
bool saved_waits = false, saved_ended = false;

byte fresh = 1;       /* tokens so far */
byte rounds = 0;      /* checkpoints that have begun, each with a secret of this number */
bool has[ALL];        /* the process knows that it has the session */
bool dead[ALL];
byte mine[ALL];       /* the process's token */
byte known[ALL];      /* its secret */
/* Checkpoints. */
bool taken[ROUNDS + 1];
byte image_token[ROUNDS + 1];
byte image_secret[ROUNDS + 1];

inline Save() {
  saved_token = token; saved_before = before; saved_secret = secret; saved_owner = owner;
  saved_waits = waits; saved_ended = ended
}

/* Before an answer. */
inline SaveNow() {
#ifndef MUTANT_UNSAVED
  Save()
#else
  skip
#endif
}

inline Die() {
  d_step {
    dead[me] = true;
    has[me] = false;
    if
    :: owner == me && !waits -> ended = true; Save()
    :: else -> skip
    fi;
    /* A process that has not let go is no checkpoint. */
    assert(ended || owner != me || left)
  };
  over = true
}

inline Call() {
  d_step {
    if
    :: !ended && mine[me] == token -> assert(owner == me)
    :: else -> has[me] = false; over = !left
    fi
  }
}

inline Leave() {
  d_step {
    rounds++;
    known[me] = rounds;
#ifdef MUTANT_OLD_SECRET
    secret = 1;
    known[me] = 1;
#else
    secret = rounds;
    before = 0;
#endif
#ifdef MUTANT_WAITS_AT_ONCE
    waits = true;
#endif
    Save()
  };
  if
  :: Die()
  :: true -> skip
  fi;
  if
  :: over -> skip
  :: else ->
     /* The answer may be lost: it is asked for again. */
     do
     :: d_step {
          if
          :: !ended && secret == known[me] && owner == me -> waits = true; SaveNow()
          :: else -> skip
          fi
        }
     :: d_step { ended -> has[me] = false }; over = true; break
     :: d_step {
          waits && !ended ->
          has[me] = false;
          left = true;
          taken[rounds] = true;
          image_token[rounds] = mine[me];
          image_secret[rounds] = known[me];
          image = rounds
        };
        break
     od
  fi
}

/* Takes the session back. */
inline Restore() {
  do
  :: over || has[me] -> break
  :: !over && !has[me] ->
     d_step {
       yes = false;
       if
       :: ended -> skip
#ifdef MUTANT_FORGETS_TOKEN
       :: !ended && mine[me] != token -> skip
       :: !ended && mine[me] == token ->
#else
       :: !ended && mine[me] != token && (before == 0 || mine[me] != before) -> skip
       :: !ended && (mine[me] == token || (before != 0 && mine[me] == before)) ->
#endif
          if
          :: secret != known[me] -> skip
          :: secret == known[me] && waits ->
             before = token;
#ifndef MUTANT_SAME_TOKEN
             fresh++;
             token = fresh;
#endif
             waits = false;
             owner = me;
             yes = true;
             SaveNow()
#ifdef MUTANT_ANYBODY
          :: secret == known[me] && !waits -> yes = true
#else
          :: secret == known[me] && !waits -> yes = (owner == me)
#endif
          fi
       fi;
       if
       :: !yes -> assert(ended || (!waits && owner != me) || image != rounds)
       :: else -> skip
       fi
     };
     if
     :: d_step {
          yes ->
          assert(image == rounds);
          p = 0;
          do
          :: p == ALL -> break
          :: p < ALL -> assert(p == me || !has[p]); p++
          od;
          mine[me] = token;
          left = false;
          has[me] = true;
          had = true
        }
     :: yes -> skip  /* the answer is lost */
     :: !yes -> over = true
     fi
  od
}

inline Live() {
  do
  :: over -> break
  :: !over && has[me] -> Call()
  :: !over && has[me] && rounds < ROUNDS -> Leave()
  :: !over && !has[me] && left -> Restore()
  :: !over && !has[me] && left && had -> Call()  /* a program that holds on to what it had */
  :: !over -> Die()
  od
}

proctype First() {
  byte me = 0, p = 0, image = 0;
  bool over = false, left = false, had = true, yes = false;
  Live()
}

proctype Restored(byte me) {
  byte p = 0, image = 0;
  bool over = false, left = true, had = false, yes = false;
  if
  :: d_step { taken[1] -> image = 1 }
#if ROUNDS > 1
  :: d_step { taken[2] -> image = 2 }
#endif
  :: timeout -> over = true
  fi;
  if
  :: over -> skip
  :: else ->
     d_step { mine[me] = image_token[image]; known[me] = image_secret[image] };
     Live()
  fi
}

proctype Daemon() {
  byte restarts = 0;
  do
  :: restarts < RESTARTS ->
     d_step {
       restarts++;
       token = saved_token; before = saved_before; secret = saved_secret; owner = saved_owner;
       waits = saved_waits; ended = saved_ended;
       if
       :: !waits && dead[owner] -> ended = true
       :: else -> skip
       fi;
       Save()
     }
  :: restarts < RESTARTS -> d_step { Save() }
#ifdef EXPIRES
  :: d_step { waits && !ended -> ended = true; Save() }; break
#endif
  :: true -> break
  od
}

init {
  byte i;
  atomic {
    mine[0] = 1;
    has[0] = true;
    run First();
    for (i : 1 .. COPIES) {
      run Restored(i)
    };
    run Daemon()
  }
}
