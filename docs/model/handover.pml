/* The planned handover of one endpoint, and what becomes of it when its commit is in doubt.
 *
 * Written from docs/wire.md (Handovers, Doubt), not from the code; docs/model/README.md maps its states to the code's names.
 * Source S hands an endpoint to target T. Each of N peers is the other end of one stream with a message that S has received
 * and not delivered: it goes along in STATE, and must be delivered once on the line of owners that survives.
 *
 * The network is the worst there is: whatever was ever sent may arrive at any time, any number of times, in any order, or
 * never. Every frame of the protocol is absolute, so a bit for "has been sent" is all there is to know of it. Suspicion is
 * free: anybody may take anybody for dead at any time, rightly or not. Crashes are bounded by CRASHES.
 */
#ifndef N
#define N 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif

mtype = { PREPARING, TRANSFER, COMMITTING, DOUBT, RELEASED, SERVING, RESUMED,   /* S */
          RECEIVING, COMMITTED, COMPLETED, ABORTED, FENCED };                   /* T */

mtype s = PREPARING;
mtype t = ABORTED;               /* nothing prepared yet */
bool alive_s = true, alive_t = true, alive_p[N] = true;
byte crashes = 0;

/* Frames that have been sent. */
bool prepare, prepared, state, commit, committed, release, unknown, aborted, renewed, told;
bool announce, seen[N], fence[N], promise[N], fence_seen[N];

/* What the nodes know. */
bool prepared_once, t_refused;
bool s_promised[N], s_given_up[N], s_suspects_t, t_seen[N], t_suspects_s;
byte p_epoch[N];                 /* 0: E; 1: E+1; 2: E+2 */
bool p_bound[N], p_reset[N], p_suspects_s[N];

/* What applications have got. */
bool by_t[N], by_s[N];

inline check() {
    assert(!(s == RESUMED && t == COMPLETED && alive_t));                       /* never two that may open streams */
    assert(!(by_t[0] && by_s[0]) || p_reset[0]);                                /* C2 */
#if N > 1
    assert(!(by_t[1] && by_s[1]) || p_reset[1]);
#endif
}

#define ALL_SEEN   (t_seen[0] && (N < 2 || t_seen[N - 1]))
#define ANY_SEEN   (t_seen[0] || t_seen[N - 1])

/* Defects, each of which spin must find: see docs/model/README.md. */
#ifdef NO_EVIDENCE
#define EVIDENCE true
#else
#define EVIDENCE (s_promised[0] || s_promised[N - 1])
#endif
#ifdef KEEP_SILENT_PEERS
#define KEPT(i) true
#else
#define KEPT(i) (!s_given_up[i])
#endif
#ifdef FORGET_PROMISES
#define MAY_FOLLOW(i) true
#else
#define MAY_FOLLOW(i) (!p_bound[i])
#endif
#ifdef BREAK_SILENTLY
#define BROKEN false
#else
#define BROKEN true
#endif
#ifdef COUNT_BROKEN_PROMISES
#define COUNTS(i) true
#else
#define COUNTS(i) (!p_reset[i])
#endif
#ifdef SERVE_AT_ONCE
#define AT_ONCE true
#else
#define AT_ONCE false
#endif

active proctype Source() {
    byte i;
end:
    do
    :: atomic { alive_s && s == PREPARING && !prepare -> prepare = true }
    :: atomic { alive_s && s == PREPARING && prepared -> s = TRANSFER; state = true }
    :: atomic { alive_s && s == TRANSFER -> s = COMMITTING; commit = true }
       /* Before COMMIT an abort is free. */
    :: atomic { alive_s && (s == PREPARING || s == TRANSFER) && prepare -> s = SERVING; aborted = true }
    :: atomic { alive_s && s == COMMITTING && !s_suspects_t -> s_suspects_t = true; s = DOUBT;
                for (i : 0 .. N - 1) { fence[i] = true } }
    :: atomic { alive_s && (s == COMMITTING || s == DOUBT) && committed -> s = RELEASED; release = true; told = true }
    :: atomic { alive_s && s == COMMITTING && unknown -> s = SERVING; aborted = true }
    :: atomic { alive_s && s == DOUBT && unknown -> s = RESUMED; renewed = true; check() }
    :: atomic { alive_s && s == DOUBT && (fence_seen[0] || fence_seen[N - 1]) -> s = RELEASED; release = true; told = true }
    :: atomic { alive_s && s == DOUBT && promise[0] && !s_promised[0] -> s_promised[0] = true }
    :: atomic { alive_s && s == DOUBT && promise[N - 1] && !s_promised[N - 1] -> s_promised[N - 1] = true }
#ifdef NO_PROMISES
    :: atomic { alive_s && s == DOUBT -> s = RESUMED; renewed = true; check() }
#endif
       /* All that can be reached have promised, at least one of them; the others' streams are given up. */
    :: atomic { alive_s && s == DOUBT && EVIDENCE ->
                for (i : 0 .. N - 1) { s_given_up[i] = !s_promised[i] };
                   s = RESUMED; renewed = true; check() }
       /* It serves: what it had received and not delivered. */
    :: atomic { alive_s && (s == RESUMED || s == SERVING) && !by_s[0] && KEPT(0) ->
                by_s[0] = true; check() }
    :: atomic { alive_s && (s == RESUMED || s == SERVING) && !by_s[N - 1] && KEPT(N - 1) ->
                by_s[N - 1] = true; check() }
    :: atomic { alive_s && crashes < CRASHES -> alive_s = false; crashes++ }
    od
}

active proctype Target() {
end:
    do
    :: atomic { alive_t && t == ABORTED && prepare && !prepared_once -> prepared_once = true; t = RECEIVING; prepared = true }
    :: atomic { alive_t && t == RECEIVING && (aborted || !t_suspects_s) -> t = ABORTED; t_refused = true }
    :: atomic { alive_t && t == ABORTED && t_refused && commit && !unknown -> unknown = true }
    :: atomic { alive_t && t == RECEIVING && state && commit && !renewed -> t = COMMITTED; committed = true; announce = true;
                by_t[0] = AT_ONCE; by_t[N - 1] = AT_ONCE; check() }
    :: atomic { alive_t && t == COMMITTED && seen[0] && !t_seen[0] -> t_seen[0] = true }
    :: atomic { alive_t && t == COMMITTED && seen[N - 1] && !t_seen[N - 1] -> t_seen[N - 1] = true }
       /* A stream is served once its other end has seen the new epoch, or nothing is in doubt any more. */
    :: atomic { alive_t && !by_t[0] && ((t == COMMITTED && t_seen[0]) || t == COMPLETED) -> by_t[0] = true; check() }
    :: atomic { alive_t && !by_t[N - 1] && ((t == COMMITTED && t_seen[N - 1]) || t == COMPLETED) -> by_t[N - 1] = true; check() }
    :: atomic { alive_t && t == COMMITTED && release -> t = COMPLETED; check() }
       /* The source is silent: beyond doubt once all that it could ask have seen. */
    :: atomic { alive_t && t == COMMITTED && !t_suspects_s -> t_suspects_s = true }
    :: atomic { alive_t && t == COMMITTED && t_suspects_s && ALL_SEEN -> t = COMPLETED; check() }
    :: atomic { alive_t && (t == COMMITTED || t == COMPLETED) && renewed -> t = FENCED }
    :: atomic { alive_t && crashes < CRASHES -> alive_t = false; crashes++ }
    od
}

proctype Peer(byte i) {
end:
    do
       /* The new epoch is announced: follow, unless the contrary was promised. */
    :: atomic { alive_p[i] && announce && p_epoch[i] < 1 && MAY_FOLLOW(i) ->
                p_epoch[i] = 1; seen[i] = COUNTS(i) }
    :: atomic { alive_p[i] && fence[i] && p_epoch[i] < 1 && !p_bound[i] && !p_reset[i] && !told -> p_bound[i] = true; promise[i] = true }
    :: atomic { alive_p[i] && fence[i] && p_epoch[i] == 1 && !fence_seen[i] -> fence_seen[i] = true }
    :: atomic { alive_p[i] && p_bound[i] && told -> p_bound[i] = false }
    :: atomic { alive_p[i] && renewed && p_epoch[i] < 2 -> p_epoch[i] = 2; p_bound[i] = false }
       /* The source is taken for dead: the promise ends, and the stream with it. */
    :: atomic { alive_p[i] && p_bound[i] && !p_suspects_s[i] -> p_suspects_s[i] = true; p_bound[i] = false; p_reset[i] = BROKEN }
    :: atomic { alive_p[i] && crashes < CRASHES -> alive_p[i] = false; crashes++ }
    od
}

/* When nothing more can happen: nobody is left hanging if nobody has died. */
active proctype Watch() {
    timeout ->
    if
    :: crashes == 0 ->
       assert(s == SERVING || s == RELEASED || s == RESUMED);
       assert(t == ABORTED || t == COMPLETED || t == FENCED);
       assert(!(s == RELEASED) || t == COMPLETED);
       assert(by_s[0] || by_t[0] || p_reset[0] || s_given_up[0]);
       assert(by_s[N - 1] || by_t[N - 1] || p_reset[N - 1] || s_given_up[N - 1])
    :: else
    fi
}

init {
    byte i;
    atomic { for (i : 0 .. N - 1) { run Peer(i) } }
}
