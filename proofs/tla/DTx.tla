-------------------------------- MODULE DTx --------------------------------
(***************************************************************************)
(* D-TX: snapshot, validation, decision, forgetting, over a tree of brokers *)
(* with FIFO links.  One step is one message taken in by one broker, as in  *)
(* padres_tx/dynamic.py and padres_tx/engines/d_tx.py; proofs/README.md     *)
(* maps the actions to functions.                                           *)
(*                                                                          *)
(* What an operation does to the tables is abstract: at each broker that it *)
(* visits it reads and writes some keys.  A key stands for a part of a      *)
(* table; what overlaps what is padres_tx/conflicts.py's business.  Writes  *)
(* commute (Convergence), so only reads against writes order transactions.  *)
(*                                                                          *)
(* Not here: crashes, time-outs (an abort may come at any moment instead),  *)
(* tcm frames (an operation's visits are given), the clients themselves.    *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, Trees

CONSTANTS
  Brokers,
  Nbr,      \* [Brokers -> SUBSET Brokers], a tree
  Txs,
  Edge,     \* [Txs -> Brokers]: the coordinator's edge broker
  Age,      \* [Txs -> Nat], all different: smaller is older
  Ops,      \* [Txs -> Seq([Brokers it visits -> [r, w: SUBSET Keys]])], each from Edge[t] on
  Dooms,    \* transactions that may be aborted at any time
  Fencing,  \* transactions that ask for precedence
  Pubs,     \* plain publications
  Plains,   \* plain routing operations
  From,     \* [Pubs \cup Plains -> Brokers]: the edge broker of who says it
  Reach,    \* [Pubs \cup Plains -> SUBSET Brokers]: where it goes
  Touch,    \* [Plains -> [r, w: SUBSET Keys]], at every broker that it visits
  Arrival,  \* TRUE: brokers look at transactions as they came, not by age (see LookAll)
  Rules     \* AllRules, or fewer in a negative control

AllRules == {
  "undecided",     \* Init carries what is undecided at the coordinator's edge
  "all vote",      \* a commit needs the vote of every broker, visited or not
  "both ways",     \* validation looks at the reads of both
  "outside",       \* ... and at what was committed outside the snapshot
  "die",           \* who meets an older one gives up
  "hold",          \* a plain operation waits for the prepared ones it conflicts with
  "forget",        \* old versions stay until all brokers have the decision
  "stamp",         \* a publication is stamped with what is undecided at its edge
  "fence" }        \* a fenced transaction begins when every broker gives way

VARIABLES
  brk,   \* each broker's state
  net,   \* net[<<b, c>>]: what is on its way from b to c
  sees,  \* history: what each transaction sees at its edge
  said   \* which clients have spoken: what happens of itself, at most once

vars == <<brk, net, sees, said>>

Links == {<<b, c>> \in Brokers \X Brokers : c \in Nbr[b]}

(***************************************************************************)
(* The tree.                                                                *)
(***************************************************************************)
Hops == HopTable(Nbr)

Up(b, t) == IF b = Edge[t] THEN b ELSE Hops[b][Edge[t]]
Others(b, t) == Nbr[b] \ {Up(b, t)}

Visited(t) == {Edge[t]} \cup UNION {DOMAIN Ops[t][i] : i \in 1..Len(Ops[t])}
Keys(t, b, f) == UNION {Ops[t][i][b][f] : i \in {j \in 1..Len(Ops[t]) : b \in DOMAIN Ops[t][j]}}

(***************************************************************************)
(* A broker's state.  `o` is what a step sends, in order; empty between     *)
(* steps.                                                                   *)
(***************************************************************************)
NewTx == [st |-> "active", snap |-> {}, waits |-> {}, verdict |-> "?", voted |-> FALSE,
          r |-> {}, w |-> {}, pc |-> 0, asked |-> {}, since |-> {}, old |-> {},
          doomed |-> FALSE, forgotten |-> FALSE, fenced |-> FALSE]

InitBroker(b) ==
  [txs |-> [t \in {} |-> NewTx],
   ord |-> <<>>,      \* the known transactions as they came, if that matters
   mark |-> {},       \* committed, and entries still carry the version
   gone |-> {},       \* committed and folded: simply how things are
   dead |-> {},       \* history: aborted
   plain |-> {},      \* plain operations carried out here
   held |-> <<>>,     \* plain operations that wait for a decision
   after |-> [p \in {} |-> {}],  \* history: what each plain operation found committed
   before |-> [t \in {} |-> {}], \* history: the plain operations that each transaction found
   got |-> [p \in {} |-> {}],    \* history: what each publication was routed on
   o |-> [n \in Nbr[b] |-> <<>>]]

Extend(f, x, v) == [y \in DOMAIN f \cup {x} |-> IF y = x THEN v ELSE f[y]]
Without(f, x) == [y \in DOMAIN f \ {x} |-> f[y]]

Put(s, dests, m) == [s EXCEPT !.o = [n \in DOMAIN s.o |->
                       IF n \in dests THEN Append(s.o[n], m) ELSE s.o[n]]]

Known(s, t) == t \in DOMAIN s.txs
Open(s, t) == Known(s, t) /\ s.txs[t].st \notin {"committed", "aborted"}
OpenTxs(s) == {t \in DOMAIN s.txs : Open(s, t)}
Begun(s, t) == Known(s, t) /\ s.txs[t].st \notin {"fencing", "fenced"}
\* Versions.open: what has begun here and is not decided.
Undecided(s) == {t \in OpenTxs(s) : Begun(s, t)}
Preparing(s) == {t \in DOMAIN s.txs : s.txs[t].st = "preparing" /\ s.txs[t].verdict # "no"}
Fences(s) == {t \in OpenTxs(s) : s.txs[t].fenced}
Older(t, u) == Age[t] < Age[u]
Enter(s, t) == IF Arrival /\ ~Known(s, t) THEN Append(s.ord, t) ELSE s.ord

ReadsWhat(x, y) == x.r \cap y.w # {}
Conflict(x, y) == ReadsWhat(x, y) \/ ReadsWhat(y, x)

(***************************************************************************)
(* Validation (DTx.judge).                                                  *)
(***************************************************************************)
Judge(s, t) ==
  LET me == s.txs[t]
      against == {u \in Preparing(s) \ {t} :
                    IF "both ways" \in Rules THEN Conflict(me, s.txs[u])
                    ELSE ReadsWhat(me, s.txs[u])}
  IN  IF \E f \in Fences(s) : ~me.fenced \/ Older(f, t) THEN "no"
      ELSE IF "outside" \in Rules /\ \E u \in s.mark \ me.snap : ReadsWhat(me, s.txs[u]) THEN "no"
      ELSE IF \E p \in me.since : ReadsWhat(me, Touch[p]) THEN "no"
      ELSE IF \E i \in 1..Len(s.held) : Conflict(me, Touch[s.held[i]]) THEN "no"
      ELSE IF "die" \in Rules /\ \E u \in against : Older(u, t) THEN "no"
      ELSE IF against = {} THEN "yes" ELSE "?"

(***************************************************************************)
(* Steps within one broker.                                                 *)
(***************************************************************************)
\* DTx._fold: let versions go that everybody has and everybody here sees.
Fold(s) ==
  LET views == {s.txs[t].snap : t \in Undecided(s)}
      may == {t \in s.mark : /\ s.txs[t].forgotten \/ "forget" \notin Rules
                             /\ "forget" \in Rules => \A v \in views : t \in v}
  IN  [s EXCEPT !.mark = @ \ may, !.gone = @ \cup may,
                !.txs = [t \in DOMAIN s.txs \ {u \in may : s.txs[u].forgotten} |-> s.txs[t]],
                !.ord = SelectSeq(@, LAMBDA t : ~(t \in may /\ s.txs[t].forgotten))]

\* Dynamic.start and DTx.begun.  The snapshot: what is committed here, without U.
Start(s, b, t, undecided) ==
  LET tx == [(IF Known(s, t) THEN s.txs[t] ELSE NewTx) EXCEPT
               !.st = "active", !.waits = {}, !.snap = s.mark \ undecided,
               !.old = s.gone \cup (s.mark \ undecided)]
      s1 == [s EXCEPT !.txs = Extend(@, t, tx),
                      !.ord = Enter(s, t),
                      !.before = IF Plains = {} THEN @ ELSE Extend(@, t, s.plain)]
  IN  Put(s1, Others(b, t), <<"init", t, undecided>>)

\* Fences stand when what was prepared is decided; the oldest first (DTx._fences_again).
FencesAgain(s, b) ==
  LET oldest == {f \in Fences(s) : \A g \in Fences(s) : g = f \/ Older(f, g)}
      ready == {f \in oldest : /\ s.txs[f].st = "fencing" /\ Preparing(s) = {}
                               /\ s.txs[f].waits = {} \/ "fence" \notin Rules}
  IN  IF ready = {} THEN s
      ELSE LET f == CHOOSE x \in ready : TRUE
               s1 == [s EXCEPT !.txs[f].st = "fenced"]
           IN  IF b = Edge[f]
               THEN Start(s1, b, f, IF "undecided" \in Rules THEN Undecided(s1) ELSE {})
               ELSE Put(s1, {Up(b, f)}, <<"fenced", f>>)

ByAge(S) == CHOOSE q \in [1..Cardinality(S) -> S] :
              \A i, j \in DOMAIN q : i < j => Older(q[i], q[j])

\* A plain operation is carried out: it counts as committed at once.
CarryOut(s, b, p, src) ==
  LET s1 == [s EXCEPT !.plain = @ \cup {p},
                      !.after = Extend(@, p, s.mark \cup s.gone),
                      !.txs = [t \in DOMAIN @ |-> IF t \in Undecided(s)
                                 THEN [@[t] EXCEPT !.since = @ \cup {p}] ELSE @[t]]]
  IN  Put(s1, {n \in Nbr[b] \ {src} : n \in Reach[p]}, <<"plain", p>>)

\* DTx.holds.
Holds(s, p) == \/ Fences(s) # {}
               \/ /\ "hold" \in Rules
                  /\ \E t \in Preparing(s) : Conflict(Touch[p], s.txs[t])

From2(b, p) == IF b = From[p] THEN b ELSE Hops[b][From[p]]

RECURSIVE Release(_, _)
Release(s, b) ==
  IF s.held = <<>> \/ Holds(s, Head(s.held)) THEN s
  ELSE Release(CarryOut([s EXCEPT !.held = Tail(@)], b, Head(s.held), From2(b, Head(s.held))), b)

\* Dynamic._acknowledge and Dynamic._forget.
Forget(s, b, t) ==
  LET s1 == Put([s EXCEPT !.txs[t].forgotten = TRUE], Others(b, t), <<"forget", t>>)
      s2 == IF s1.txs[t].st # "aborted" THEN s1
            ELSE [s1 EXCEPT !.txs = Without(@, t), !.ord = SelectSeq(@, LAMBDA u : u # t)]
  IN  IF t \in s2.gone THEN [s2 EXCEPT !.txs = Without(@, t),
                                       !.ord = SelectSeq(@, LAMBDA u : u # t)]
      ELSE Fold(s2)

Acknowledge(s, b, t) ==
  IF ~Known(s, t) \/ s.txs[t].waits # {} \/ s.txs[t].forgotten THEN s
  ELSE IF b = Edge[t] THEN Forget(s, b, t)
  ELSE Put(s, {Up(b, t)}, <<"decided", t>>)

RECURSIVE Spread(_, _, _, _), LookAgain(_, _, _), LookAll(_, _, _), Answer(_, _, _)

\* Dynamic._spread: a decision counts here, and is passed on.
Spread(s, b, t, committed) ==
  LET s1 == [s EXCEPT !.txs[t].st = IF committed THEN "committed" ELSE "aborted",
                      !.txs[t].waits = Others(b, t),
                      !.txs[t].asked = {}, !.txs[t].since = {},
                      !.txs[t].r = {}, !.txs[t].w = IF committed THEN @ ELSE {},
                      !.txs[t].fenced = FALSE,
                      !.mark = IF committed THEN @ \cup {t} ELSE @,
                      !.dead = IF committed THEN @ ELSE @ \cup {t}]
      s2 == FencesAgain(Fold(s1), b)
      s3 == Put(s2, Others(b, t), <<"decide", t, committed>>)
      s4 == LookAll(s3, b, IF Arrival THEN s3.ord ELSE ByAge(DOMAIN s3.txs))
  IN  Acknowledge(Release(s4, b), b, t)

LookAll(s, b, q) ==
  IF q = <<>> THEN s
  ELSE LookAll(IF Open(s, Head(q)) THEN LookAgain(s, b, Head(q)) ELSE s, b, Tail(q))

LookAgain(s, b, t) ==
  LET s1 == IF s.txs[t].st = "preparing" /\ s.txs[t].verdict = "?"
            THEN [s EXCEPT !.txs[t].verdict = Judge(s, t)] ELSE s
  IN  Answer(s1, b, t)

\* Dynamic._answer: a no at once, a yes when all behind have said so.
Answer(s, b, t) ==
  LET tx == s.txs[t] IN
  IF tx.verdict = "?" \/ tx.voted \/ tx.st # "preparing" \/ (tx.verdict = "yes" /\ tx.waits # {})
  THEN s
  ELSE LET s1 == [s EXCEPT !.txs[t].voted = TRUE] IN
       IF b = Edge[t] THEN Spread(s1, b, t, tx.verdict = "yes")
       ELSE Put(s1, {Up(b, t)}, <<"vote", t, tx.verdict>>)

\* Dynamic._prepare.
Prepare(s, b, t) ==
  IF ~Open(s, t) THEN s
  ELSE LET asked == {n \in Others(b, t) : \/ "all vote" \in Rules
                                          \/ Side(Nbr, b, n) \cap Visited(t) # {}}
           s1 == [s EXCEPT !.txs[t].st = "preparing", !.txs[t].waits = asked]
       IN  LookAgain(Put(s1, asked, <<"prepare", t>>), b, t)

\* Dynamic.carry_out and _publish: look at the tables, change them, ask the neighbours behind.
Operate(s, b, t, i) ==
  LET op == Ops[t][i]
      beyond == {n \in Others(b, t) : n \in DOMAIN op}
      s1 == [s EXCEPT !.txs[t].r = @ \cup op[b].r, !.txs[t].w = @ \cup op[b].w,
                      !.txs[t].asked = beyond]
      s2 == Put(s1, beyond, <<"op", t, i>>)
  IN  IF beyond = {} /\ b # Edge[t] THEN Put(s2, {Up(b, t)}, <<"acked", t>>) ELSE s2

\* Dynamic.doom at the coordinator's edge.
Doom(s, b, t) == IF Open(s, t) THEN Spread(s, b, t, FALSE) ELSE s

Fence(s, b, t) ==
  LET tx == [NewTx EXCEPT !.st = "fencing", !.waits = Others(b, t), !.fenced = TRUE]
      s1 == [s EXCEPT !.txs = Extend(@, t, tx), !.ord = Enter(s, t)]
  IN  FencesAgain(Put(s1, Others(b, t), <<"fence", t>>), b)

Fenced(s, b, t, src) ==
  IF ~Known(s, t) \/ s.txs[t].st # "fencing" THEN s
  ELSE FencesAgain([s EXCEPT !.txs[t].waits = @ \ {src}], b)

Publish(s, b, p, hidden, src) ==
  Put([s EXCEPT !.got = Extend(@, p, s.gone \cup (s.mark \ hidden))],
      {n \in Nbr[b] \ {src} : n \in Reach[p]}, <<"pub", p, hidden>>)

PlainOp(s, b, p, src) ==
  IF s.held # <<>> \/ Holds(s, p) THEN [s EXCEPT !.held = Append(@, p)]
  ELSE CarryOut(s, b, p, src)

\* Dynamic.receive: what a broker does with a neighbour's message.
Take(s, b, src, m) ==
  LET t == m[2] IN
  CASE m[1] = "init"    -> Start(s, b, t, m[3])
    [] m[1] = "op"      -> IF Open(s, t) THEN Operate(s, b, t, m[3]) ELSE s
    [] m[1] = "acked"   -> IF ~Open(s, t) THEN s
                           ELSE LET s1 == [s EXCEPT !.txs[t].asked = @ \ {src}] IN
                                IF s1.txs[t].asked = {} /\ b # Edge[t]
                                THEN Put(s1, {Up(b, t)}, m) ELSE s1
    [] m[1] = "prepare" -> Prepare(s, b, t)
    [] m[1] = "vote"    -> IF ~Open(s, t) THEN s
                           ELSE Answer([s EXCEPT !.txs[t].waits = @ \ {src},
                                          !.txs[t].verdict = IF m[3] = "no" THEN "no" ELSE @], b, t)
    [] m[1] = "decide"  -> Spread(s, b, t, m[3])
    [] m[1] = "decided" -> IF ~Known(s, t) \/ Open(s, t) THEN s
                           ELSE Acknowledge([s EXCEPT !.txs[t].waits = @ \ {src}], b, t)
    [] m[1] = "forget"  -> IF Known(s, t) THEN Forget(s, b, t) ELSE s
    [] m[1] = "fence"   -> Fence(s, b, t)
    [] m[1] = "fenced"  -> Fenced(s, b, t, src)
    [] m[1] = "pub"     -> Publish(s, b, m[2], m[3], src)
    [] m[1] = "plain"   -> PlainOp(s, b, m[2], src)

(***************************************************************************)
(* Behaviours.                                                              *)
(***************************************************************************)
Nothing(b) == [n \in Nbr[b] |-> <<>>]

\* A broker's step: its new state, and what it sends goes behind what is on its way.
Step(b, s, taken) ==
  /\ brk' = [brk EXCEPT ![b] = [s EXCEPT !.o = Nothing(b)]]
  /\ net' = [l \in Links |->
               IF l[1] = b THEN taken[l] \o s.o[l[2]] ELSE taken[l]]

Init ==
  /\ brk = [b \in Brokers |-> InitBroker(b)]
  /\ net = [l \in Links |-> <<>>]
  /\ sees = [t \in Txs |-> {}]
  /\ said = {}

\* What begins here and now has its snapshot.
SeesNow(b, s) == [t \in Txs |-> IF b = Edge[t] /\ Begun(s, t) /\ ~Begun(brk[b], t)
                                THEN s.txs[t].old ELSE sees[t]]

Receive(c, b) ==
  /\ <<c, b>> \in Links /\ net[<<c, b>>] # <<>>
  /\ LET s == Take(brk[b], b, c, Head(net[<<c, b>>])) IN
     /\ Step(b, s, [net EXCEPT ![<<c, b>>] = Tail(@)])
     /\ sees' = IF Fencing = {} THEN sees ELSE SeesNow(b, s)
  /\ UNCHANGED said

\* Of itself: b takes something that one of its clients says.
Spontaneous(b, s, what) ==
  /\ what \notin said
  /\ said' = said \cup {what}
  /\ Step(b, s, net)

Begin(t) ==
  LET b == Edge[t]
      s == IF t \in Fencing THEN Fence(brk[b], b, t)
           ELSE Start(brk[b], b, t, IF "undecided" \in Rules THEN Undecided(brk[b]) ELSE {})
  IN  /\ Spontaneous(b, s, <<"begin", t>>)
      /\ sees' = SeesNow(b, s)

Waits(t) == LET s == brk[Edge[t]] IN Known(s, t) /\ s.txs[t].st = "active" /\ s.txs[t].asked = {}

\* The coordinator's next operation, when the one before is done everywhere; at last the commit.
Continue(t) ==
  LET b == Edge[t]
      i == brk[b].txs[t].pc + 1
      s == [brk[b] EXCEPT !.txs[t].pc = i]
  IN  /\ Waits(t)
      /\ Step(b, IF i <= Len(Ops[t]) THEN Operate(s, b, t, i) ELSE Prepare(s, b, t), net)
      /\ UNCHANGED <<sees, said>>

Abort(t) ==
  /\ t \in Dooms /\ Open(brk[Edge[t]], t) /\ Begun(brk[Edge[t]], t)
  /\ Spontaneous(Edge[t], Doom(brk[Edge[t]], Edge[t], t), <<"abort", t>>)
  /\ UNCHANGED sees

Say(p) ==
  LET b == From[p] IN
  /\ Spontaneous(b, IF p \in Plains THEN PlainOp(brk[b], b, p, b)
                    ELSE Publish(brk[b], b, p,
                           IF "stamp" \in Rules THEN Undecided(brk[b]) ELSE {}, b), <<"say", p>>)
  /\ UNCHANGED sees

Next ==
  \/ \E l \in Links : Receive(l[1], l[2])
  \/ \E t \in Txs : Begin(t) \/ Continue(t) \/ Abort(t)
  \/ \E p \in Pubs \cup Plains : Say(p)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
CommittedAt(b, t) == t \in brk[b].mark \cup brk[b].gone
Committed == {t \in Txs : \E b \in Brokers : CommittedAt(b, t)}

OneOutcome == \A t \in Txs, b, c \in Brokers : ~(CommittedAt(b, t) /\ t \in brk[c].dead)

\* The snapshot is the same set of transactions at every broker.
SnapshotAgree ==
  \A t \in Txs : \A b, c \in {d \in Brokers : Begun(brk[d], t)} :
     brk[b].txs[t].old = brk[c].txs[t].old

\* A plain publication is routed on one version all along its way.
OneSide ==
  \A p \in Pubs : \A b, c \in {d \in Brokers : p \in DOMAIN brk[d].got} :
     brk[b].got[p] = brk[c].got[p]

\* Who must come before whom, by what each has read.
Precedes(x, y) ==
  IF x \in Txs /\ y \in Txs
  THEN \E b \in Brokers : \/ Keys(y, b, "r") \cap Keys(x, b, "w") # {} /\ x \in sees[y]
                          \/ Keys(x, b, "r") \cap Keys(y, b, "w") # {} /\ y \notin sees[x]
  ELSE IF x \in Plains /\ y \in Txs
  THEN \E b \in Reach[x] :
         \/ Touch[x].w \cap Keys(y, b, "r") # {} /\ x \in brk[b].before[y]
         \/ /\ Touch[x].r \cap Keys(y, b, "w") # {}
            /\ x \in DOMAIN brk[b].after /\ y \notin brk[b].after[x]
  ELSE IF x \in Txs /\ y \in Plains
  THEN \E b \in Reach[y] :
         \/ Touch[y].w \cap Keys(x, b, "r") # {} /\ y \notin brk[b].before[x]
         \/ Touch[y].r \cap Keys(x, b, "w") # {} /\ y \in DOMAIN brk[b].after /\ x \in brk[b].after[y]
  ELSE FALSE

RECURSIVE Orderable(_)
Orderable(S) == S = {} \/ \E first \in S :
                  /\ \A x \in S \ {first} : ~Precedes(x, first)
                  /\ Orderable(S \ {first})

Serializable ==
  LET done == Committed \cup {p \in Plains : <<"say", p>> \in said}
  IN  Cardinality(done) > 1 => Orderable(done)

\* When nothing is on its way, nothing is left that waits: no deadlock, no old version, no mark.
AtRest ==
  (\A l \in Links : net[l] = <<>>) /\ (\A t \in Txs : ~Waits(t)) =>
     \A b \in Brokers : DOMAIN brk[b].txs = {} /\ brk[b].held = <<>> /\ brk[b].mark = {}

\* A fenced transaction with no older fence does not lose to other transactions.
FenceWins ==
  \A t \in Fencing : (\A u \in Fencing : u = t \/ Older(t, u)) /\ t \notin Dooms =>
     \A b \in Brokers : t \notin brk[b].dead
=============================================================================
