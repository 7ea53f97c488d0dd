-------------------------------- MODULE DTx --------------------------------
(***************************************************************************)
(* D-TX: snapshot, operations, votes, decision and forgetting over a tree   *)
(* of brokers. One step is one message received by one broker, as in        *)
(* padres_tx/protocol/dynamic.py, padres_tx/protocol/two_phase.py and       *)
(* padres_tx/engines/d_tx/broker.py. What the broker then does of its own   *)
(* accord (Look, Answer, Release, Acknowledge) follows at once, before      *)
(* anything else happens anywhere. proofs/README.md maps the actions to     *)
(* functions.                                                               *)
(*                                                                          *)
(* The effect of an operation on the tables is abstract: at each broker     *)
(* that it visits it reads and writes some keys. A key stands for a part of *)
(* a table; overlay/tables/footprints.py decides which parts overlap.       *)
(* Writes commute (proofs/solvers/convergence.py), so only reads against    *)
(* writes order transactions.                                               *)
(*                                                                          *)
(* As in overlay/broker/plain_requests.py, answers are nested:              *)
(* a broker keeps an operation that it has carried out as under way until   *)
(* all brokers behind it have carried it out. Instances state what holds in *)
(* the tables about reads (Spread):                                         *)
(* - A transaction that finds what p has added, or still finds what p       *)
(*   removes, reads it on the whole path to where p comes from, because     *)
(*   publications and subscriptions go towards there.                       *)
(* - Where p reads what a transaction writes, the transaction reads what p  *)
(*   writes: a subscription looks for advertisements, and an advertisement  *)
(*   for subscriptions.                                                     *)
(*                                                                          *)
(* Left out: crashes of brokers, fences, retries. A deadline, a client that *)
(* leaves and an error are each a Doom, which may come at any moment.       *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC, Trees

CONSTANTS
  Nbr,     \* [Brokers -> SUBSET Brokers], a tree
  Txs,
  Edge,    \* [Txs -> Brokers]: the coordinator's edge broker
  Age,     \* [Txs -> Nat], all different: smaller is older
  Ops,     \* [Txs -> Seq(Operations)], see below
  DoomAt,  \* [Txs -> SUBSET Brokers]: where it may be found impossible to carry out
  Pubs,    \* plain publications: numbers; each client sends its own in this order
  Home,    \* [Pubs -> Brokers]: the edge broker of its publisher
  Reach,   \* [Pubs -> SUBSET Brokers]: where it goes
  Plains,  \* plain routing operations
  From,    \* [Plains -> Brokers]: the edge broker of its client, or where it is triggered
  Touch,   \* [Plains -> [brokers -> [r, w: SUBSET Keys]]]: its brokers, and what it touches there
  Cause,   \* [Plains -> Plains]: itself, or the one that triggers it
  Takes,   \* the plain operations that remove entries
  Leaves,  \* those without acknowledgement: a client has left
  Rules    \* AllRules, or fewer in a negative control

(* An operation is [kind, by, of, keys, on].  It sets out from broker `by`  *)
(* and visits DOMAIN keys, keys[b] = [r, w] being what it touches at b.     *)
(*   of = 0: an operation of the coordinator;                               *)
(*   of = k, a "tcm": of a client at `by` that acts on that tcm;            *)
(*   of = k, an "adv": triggered at the broker `by` by that advertisement.  *)
(* kind is "tcm", "adv" (also un-advertising) or "op"; only the first two   *)
(* are acknowledged.  Numbers follow the order of the transaction.          *)
(*   on = {}: it visits all of them;                                        *)
(*   on = {p}, an "op": it goes on from a broker only if it finds there     *)
(*     what the plain operation p has added, or not yet taken away: a       *)
(*     publication towards a subscription, that towards an advertisement.   *)

Op(kind, by, of, keys) == [kind |-> kind, by |-> by, of |-> of, keys |-> keys, on |-> {}]
Towards(p, by, of, keys) == [Op("op", by, of, keys) EXCEPT !.on = {p}]
On(where, r, w) == [b \in where |-> [r |-> r, w |-> w]]

AllRules == {
  "fifo",       \* a link delivers in order
  "undecided",  \* Init carries what the coordinator's edge has voted for and does not know decided
  "answers",    \* the issuer of a tcm or an (un-)advertisement waits for its acknowledgement
  "nested",     \* ... which a broker sends when all behind it and all clients it asked have
  "all vote",   \* a commit needs the vote of every broker, visited or not
  "both ways",  \* validation compares the reads of both transactions
  "outside",    \* ... and what was committed outside the snapshot
  "since",      \* ... and the plain operations carried out since the transaction began
  "die",        \* a transaction that conflicts with an older one aborts
  "owner",      \* only the coordinator's edge broker decides
  "hold",       \* a plain operation waits for prepared transactions that it conflicts with
  "under way",  \* a transaction loses where it has read a plain operation that is not done behind
  "meets held", \* a transaction loses where it conflicts with a held operation
  "held from",  \* a neighbour's yes is a no if an operation it sent before is held here and conflicts
  "forget",     \* old versions stay until all brokers have the decision, and all here see it
  "stamp" }     \* a publication is stamped with what its edge has voted for and does not know decided

VARIABLES
  tx,     \* tx[b][t]: what broker b knows of transaction t
  net,    \* net[<<b, c>>]: what is on its way from b to c
  plain,  \* plain[b]: the plain operations that b has carried out
  held,   \* held[b]: those that wait there, in their order
  under,  \* under[b][p]: <<q, n>>: n has not acknowledged q, which is p or triggered here by p
  due,    \* brokers that have to see in this step whether what waits there can go on
  after,  \* history: after[b][p] is what p found committed at b
  got     \* history: got[p] are the versions of the tables that p was routed on

vars == <<tx, net, plain, held, under, due, after, got>>

Brokers == DOMAIN Nbr
Links == {<<b, c>> \in Brokers \X Brokers : c \in Nbr[b]}
Hops == HopTable(Nbr)
Ways == [b \in Brokers |-> [c \in Nbr[b] |-> Side(Nbr, b, c)]]

\* The neighbour of b towards a broker; b itself when it is that one.
To(b, c) == IF b = c THEN b ELSE Hops[b][c]
Up(b, t) == To(b, Edge[t])
Others(b, t) == Nbr[b] \ {Up(b, t)}

Numbers(t) == 1..Len(Ops[t])
Visits == [t \in Txs |-> [b \in Brokers |-> {i \in Numbers(t) : b \in DOMAIN Ops[t][i].keys}]]
Visited == [t \in Txs |-> {b \in Brokers : Visits[t][b] # {}}]
Touched(t, b, S, f) == UNION {Ops[t][i].keys[b][f] : i \in S \cap Visits[t][b]}

Range(q) == {q[i] : i \in 1..Len(q)}

(***************************************************************************)
(* What a broker knows of a transaction.                                    *)
(***************************************************************************)
Unknown == [st |-> "none",      \* then active, preparing; committed, gone; aborted, dead
            snap |-> {},        \* what it sees; kept as history
            base |-> {},        \* history: the plain operations that it has found here
            log |-> <<>>,       \* its operations, as they were handled here; kept as history
            open |-> {},        \* <<i, n>>: n has not acknowledged i; n = b: a client here has not
            awaited |-> {},     \* neighbours whose vote or acknowledgement is outstanding
            verdict |-> "?", voted |-> FALSE, doomed |-> FALSE, forgotten |-> FALSE]

Is(r) == r.st \in {"active", "preparing"}
\* What others may have committed: b has sent its yes, and does not know the decision.  The
\* coordinator's edge never sends one.
Voted(b) == {t \in Txs : Is(tx[b][t]) /\ tx[b][t].voted /\ tx[b][t].verdict = "yes"}
Marked(b) == {t \in Txs : tx[b][t].st = "committed"}
Folded(b) == {t \in Txs : tx[b][t].st = "gone"}
\* What a view sees that leaves something out: folded versions are permanent.
View(b, hidden) == Folded(b) \cup (Marked(b) \ hidden)
Preparing(b) == {t \in Txs : tx[b][t].st = "preparing" /\ tx[b][t].verdict # "no"}

\* Footprints: what was read and written here so far.
R(b, t) == Touched(t, b, Range(tx[b][t].log), "r")
W(b, t) == Touched(t, b, Range(tx[b][t].log), "w")

Older(t, u) == Age[t] < Age[u]

(***************************************************************************)
(* A step of broker b: what it knows then, and what it sends, in order.     *)
(***************************************************************************)
\* DTx._fold: drop versions that all brokers have and all transactions here see.
Fold(f) ==
  [t \in Txs |->
     IF /\ f[t].st = "committed"
        /\ "forget" \in Rules =>
             f[t].forgotten /\ \A u \in Txs : Is(f[u]) => t \in f[u].snap
     THEN [f[t] EXCEPT !.st = "gone"] ELSE f[t]]

Sent(b, rest, Out(_)) == [l \in Links |-> IF l[1] = b THEN rest[l] \o Out(l[2]) ELSE rest[l]]

Change(b, t, r, rest, Out(_)) ==
  /\ tx' = [tx EXCEPT ![b] = Fold([@ EXCEPT ![t] = r])]
  /\ net' = Sent(b, rest, Out)
  /\ UNCHANGED <<plain, held, under, after, got>>

Step(b, t, r, rest, Out(_)) == Change(b, t, r, rest, Out) /\ UNCHANGED due

If(c, m) == IF c THEN <<m>> ELSE <<>>

(***************************************************************************)
(* Beginning (Dynamic.start, Dynamic._init, DTx.begun).                     *)
(***************************************************************************)
Start(b, t, undecided, rest) ==
  LET r == [Unknown EXCEPT !.st = "active", !.snap = View(b, undecided), !.base = plain[b]]
      Out(n) == If(n \in Others(b, t), <<"init", t, undecided>>)
  IN  Step(b, t, r, rest, Out)

(***************************************************************************)
(* Operations (Dynamic.carry_out, _publish, _finish, _acked).               *)
(***************************************************************************)
Finds(b, p) == IF p \in Takes THEN p \notin plain[b] ELSE p \in plain[b]
Ahead(b, t, i) ==
  LET op == Ops[t][i] IN
  {n \in Nbr[b] \cap DOMAIN op.keys : /\ b = op.by \/ n # To(b, op.by)
                                      /\ \A p \in op.on : Finds(b, p)}

Triggered(b, t, i) ==
  IF Ops[t][i].kind # "adv" THEN {} ELSE {j \in Numbers(t) : Ops[t][j].of = i /\ Ops[t][j].by = b}

Clients(b, t, i) ==
  IF Ops[t][i].kind = "tcm" /\ \E j \in Numbers(t) : Ops[t][j].of = i /\ Ops[t][j].by = b
  THEN {b} ELSE {}

RECURSIVE InOrder(_)
InOrder(S) == IF S = {} THEN <<>>
              ELSE LET i == CHOOSE x \in S : \A y \in S : x <= y IN <<i>> \o InOrder(S \ {i})

Handle(b, t, i, rest) ==
  LET op == Ops[t][i]
      more == InOrder(Triggered(b, t, i))
      asked == IF op.kind = "op" THEN {} ELSE Ahead(b, t, i) \cup Clients(b, t, i)
      waits == IF "nested" \in Rules \/ b = op.by THEN asked ELSE {}
      r == [tx[b][t] EXCEPT !.log = @ \o <<i>> \o more, !.open = @ \cup {<<i, n>> : n \in asked}]
      Also(n) == LET to == SelectSeq(more, LAMBDA j : n \in Ahead(b, t, j))
                 IN  [k \in 1..Len(to) |-> <<"op", t, to[k]>>]
      Out(n) == If(n \in Ahead(b, t, i), <<"op", t, i>>) \o Also(n)
                \o If(op.kind # "op" /\ waits = {} /\ b # op.by /\ n = To(b, op.by),
                      <<"acked", t, i>>)
  IN  Step(b, t, r, rest, Out)

\* n, a neighbour or a client here, has done its part of operation i.
Answered(b, t, i, n, rest) ==
  LET by == Ops[t][i].by
      open == tx[b][t].open \ {<<i, n>>}
      done == ~\E m \in Nbr[b] \cup {b} : <<i, m>> \in open
      Out(m) == If(done /\ b # by /\ m = To(b, by) /\ "nested" \in Rules, <<"acked", t, i>>)
  IN  Step(b, t, [tx[b][t] EXCEPT !.open = open], rest, Out)

\* The operations of one frame (of one client on one occasion) are done one after the other.
Frame(t, k, b) == {i \in Numbers(t) : Ops[t][i].of = k /\ Ops[t][i].by = b}
Done(b, t, i) == /\ i \in Range(tx[b][t].log)
                 /\ "answers" \in Rules => ~\E n \in Nbr[b] \cup {b} : <<i, n>> \in tx[b][t].open

Issue(t, i) ==
  LET op == Ops[t][i] IN
  /\ op.of # 0 => Ops[t][op.of].kind = "tcm" /\ <<op.of, op.by>> \in tx[op.by][t].open
  /\ tx[op.by][t].st = "active"
  /\ i \notin Range(tx[op.by][t].log)
  /\ \A j \in Frame(t, op.of, op.by) : j < i => Done(op.by, t, j)
  /\ Handle(op.by, t, i, net)

Finish(b, t, k) ==
  /\ tx[b][t].st = "active"
  /\ <<k, b>> \in tx[b][t].open
  /\ \A j \in Frame(t, k, b) : Done(b, t, j)
  /\ Answered(b, t, k, b, net)

(***************************************************************************)
(* Preparing (Dynamic._prepare, DTx.judge, Dynamic._voted, _answer).        *)
(***************************************************************************)
Prepare(b, t, rest) ==
  LET asked == {n \in Others(b, t) : "all vote" \in Rules \/ Ways[b][n] \cap Visited[t] # {}}
      Out(n) == If(n \in asked, <<"prepare", t>>)
  IN  Step(b, t, [tx[b][t] EXCEPT !.st = "preparing", !.awaited = asked], rest, Out)

Commit(t) ==
  LET b == Edge[t] IN
  /\ tx[b][t].st = "active"
  /\ \A i \in Frame(t, 0, b) : Done(b, t, i)
  /\ Prepare(b, t, net)

Conflicts(b, p, t) == Touch[p][b].r \cap W(b, t) # {} \/ Touch[p][b].w \cap R(b, t) # {}

Judge(b, t) ==
  LET r == R(b, t)
      w == W(b, t)
      against == {u \in Preparing(b) \ {t} : \/ r \cap W(b, u) # {}
                                             \/ "both ways" \in Rules /\ w \cap R(b, u) # {}}
  IN  IF tx[b][t].doomed THEN "no"
      ELSE IF /\ "outside" \in Rules
              /\ \E u \in Marked(b) \ tx[b][t].snap : r \cap W(b, u) # {} THEN "no"
      ELSE IF /\ "since" \in Rules
              /\ \E p \in plain[b] \ tx[b][t].base : r \cap Touch[p][b].w # {} THEN "no"
      ELSE IF /\ "under way" \in Rules
              /\ \E p \in Plains : under[b][p] # {} /\ r \cap Touch[p][b].w # {} THEN "no"
      ELSE IF "meets held" \in Rules /\ \E p \in Range(held[b]) : Conflicts(b, p, t) THEN "no"
      ELSE IF "die" \in Rules /\ \E u \in against : Older(u, t) THEN "no"
      ELSE IF against = {} THEN "yes" ELSE "?"

CanLook(b, t) ==
  tx[b][t].st = "preparing" /\ tx[b][t].verdict = "?" /\ Judge(b, t) # "?"

Look(b, t) ==
  LET Out(n) == <<>> IN
  /\ CanLook(b, t)
  /\ Step(b, t, [tx[b][t] EXCEPT !.verdict = Judge(b, t)], net, Out)

\* DTx.accepts_yes: what the neighbour had sent before it voted is seen there, and not here.
HeldFrom(b, t, c) ==
  "held from" \in Rules /\ \E p \in Range(held[b]) : To(b, From[p]) = c /\ Conflicts(b, p, t)

Vote(b, t, c, answer, rest) ==
  LET lost == answer = "no" \/ HeldFrom(b, t, c)
      Out(n) == <<>>
  IN  Step(b, t, [tx[b][t] EXCEPT !.awaited = @ \ {c}, !.verdict = IF lost THEN "no" ELSE @],
           rest, Out)

(***************************************************************************)
(* The decision (Dynamic.spread, _decided, acknowledge, _forget).           *)
(***************************************************************************)
Decide(b, t, committed, rest) ==
  LET r == [tx[b][t] EXCEPT !.st = IF committed THEN "committed" ELSE "aborted",
                            !.awaited = Others(b, t), !.open = {}, !.verdict = "?",
                            !.voted = FALSE, !.doomed = FALSE,
                            !.log = IF committed THEN @ ELSE <<>>]
      Out(n) == If(n \in Others(b, t), <<"decide", t, committed>>)
  IN  /\ Change(b, t, r, rest, Out)
      /\ due' = IF held[b] = <<>> THEN due ELSE due \cup {b}

CanAnswer(b, t) ==
  LET r == tx[b][t] IN
  /\ r.st = "preparing" /\ ~r.voted
  /\ r.verdict = "no" \/ (r.verdict = "yes" /\ r.awaited = {})

Answer(b, t) ==
  LET r == tx[b][t]
      Out(n) == If(n = Up(b, t), <<"vote", t, r.verdict>>)
  IN  /\ CanAnswer(b, t)
      /\ IF b = Edge[t] THEN Decide(b, t, r.verdict = "yes", net)
         ELSE Step(b, t, [r EXCEPT !.voted = TRUE], net, Out)

Forget(b, t, rest) ==
  LET r == [tx[b][t] EXCEPT !.forgotten = TRUE, !.awaited = {}, !.voted = FALSE,
                            !.st = IF @ = "aborted" THEN "dead" ELSE @]
      Out(n) == If(n \in Others(b, t), <<"forget", t>>)
  IN  Step(b, t, r, rest, Out)

Decided(b, t, c, rest) ==
  LET Out(n) == <<>> IN Step(b, t, [tx[b][t] EXCEPT !.awaited = @ \ {c}], rest, Out)

\* The last thing in a step; `voted` says then that it was done.
CanAcknowledge(b, t) ==
  LET r == tx[b][t] IN
  r.st \notin {"none", "active", "preparing"} /\ r.awaited = {} /\ ~r.voted /\ ~r.forgotten

Acknowledge(b, t) ==
  LET Out(n) == If(n = Up(b, t), <<"decided", t>>) IN
  IF b = Edge[t] THEN Forget(b, t, net)
  ELSE Step(b, t, [tx[b][t] EXCEPT !.voted = TRUE], net, Out)

\* Dynamic.doom: abort it, or tell who can.
DoomHere(b, t, rest) ==
  LET Out(n) == If(n = Up(b, t), <<"doom", t>>) IN
  IF b = Edge[t] \/ "owner" \notin Rules THEN Decide(b, t, FALSE, rest)
  ELSE Step(b, t, [tx[b][t] EXCEPT !.doomed = TRUE], rest, Out)

Doom(b, t) == /\ b \in DoomAt[t] /\ Is(tx[b][t]) /\ ~tx[b][t].doomed
              /\ DoomHere(b, t, net)

(***************************************************************************)
(* Plain publications and operations (Broker, DTx.holds, Broker.release).   *)
(***************************************************************************)
Publish(b, p, hidden, src, rest) ==
  LET Out(n) == If(n \in (Nbr[b] \cap Reach[p]) \ {src}, <<"pub", p, hidden>>) IN
  /\ got' = [got EXCEPT ![p] = @ \cup {View(b, hidden)}]
  /\ net' = Sent(b, rest, Out)
  /\ UNCHANGED <<tx, plain, held, under, due, after>>

Holds(b, p) == "hold" \in Rules /\ \E t \in Preparing(b) : Conflicts(b, p, t)

Onward(b, p) == {n \in Nbr[b] \ {To(b, From[p])} : n \in DOMAIN Touch[p]}
Brings(b, p) == {q \in Plains \ {p} : Cause[q] = p /\ From[q] = b}
Answers(p) == Cause[p] \notin Leaves
RECURSIVE Listed(_)
Listed(S) == IF S = {} THEN <<>> ELSE LET q == CHOOSE x \in S : TRUE IN <<q>> \o Listed(S \ {q})

\* Broker._apply, Broker._ask: change the tables, and ask the neighbours for their part.
CarryOut(b, p, queue, rest) ==
  LET asked == {<<q, n>> \in ({p} \cup Brings(b, p)) \X Nbr[b] : n \in Onward(b, q)}
      Also(n) == LET to == Listed({q \in Brings(b, p) : n \in Onward(b, q)})
                 IN  [k \in 1..Len(to) |-> <<"plain", to[k]>>]
      Out(n) == If(n \in Onward(b, p), <<"plain", p>>) \o Also(n)
                \o If(asked = {} /\ Answers(p) /\ b # From[p] /\ n = To(b, From[p]), <<"done", p>>)
  IN  /\ plain' = [plain EXCEPT ![b] = @ \cup {p}]
      /\ after' = [after EXCEPT ![b][p] = View(b, {})]
      /\ held' = [held EXCEPT ![b] = queue]
      /\ under' = [under EXCEPT ![b][p] = IF Answers(p) THEN asked ELSE {}]
      /\ net' = Sent(b, rest, Out)
      /\ UNCHANGED <<tx, due, got>>

Plain(b, p, rest) ==
  IF held[b] # <<>> \/ Holds(b, p)
  THEN /\ held' = [held EXCEPT ![b] = Append(@, p)]
       /\ net' = rest
       /\ UNCHANGED <<tx, plain, under, due, after, got>>
  ELSE CarryOut(b, p, <<>>, rest)

\* Broker._done: c and all behind it have done their part of q.
Behind(b, q, c, rest) ==
  LET p == IF From[q] = b THEN Cause[q] ELSE q
      left == under[b][p] \ {<<q, c>>}
      Out(n) == If(left = {} /\ b # From[p] /\ n = To(b, From[p]), <<"done", p>>)
  IN  /\ under' = [under EXCEPT ![b][p] = left]
      /\ net' = Sent(b, rest, Out)
      /\ UNCHANGED <<tx, plain, held, due, after, got>>

\* After a decision, and only then, what waits is carried out as far as it goes.
Release(b) ==
  IF held[b] # <<>> /\ ~Holds(b, Head(held[b]))
  THEN CarryOut(b, Head(held[b]), Tail(held[b]), net)
  ELSE due' = due \ {b} /\ UNCHANGED <<tx, net, plain, held, under, after, got>>

(***************************************************************************)
(* Behaviours.                                                              *)
(***************************************************************************)
Begin(t) ==
  /\ tx[Edge[t]][t].st = "none"
  /\ Start(Edge[t], t, IF "undecided" \in Rules THEN Voted(Edge[t]) ELSE {}, net)

Emit(p) ==
  LET b == Home[p] IN
  /\ got[p] = {}
  /\ \A q \in Pubs : q < p /\ Home[q] = b => got[q] # {}
  /\ Publish(b, p, IF "stamp" \in Rules THEN Voted(b) ELSE {}, b, net)

Say(p) ==
  LET b == From[p] IN
  /\ Cause[p] = p /\ p \notin plain[b] \cup Range(held[b])
  /\ Plain(b, p, net)

Ignore(rest) == net' = rest /\ UNCHANGED <<tx, plain, held, under, due, after, got>>

\* Dynamic.receive: broker b takes message m from its neighbour c.
Take(b, c, m, rest) ==
  LET t == m[2]
      opened == m[1] \notin {"pub", "plain", "done"} /\ Is(tx[b][t])
  IN  CASE m[1] = "init"    -> Start(b, t, m[3], rest)
        [] m[1] = "op"      -> IF opened THEN Handle(b, t, m[3], rest) ELSE Ignore(rest)
        [] m[1] = "acked"   -> IF opened THEN Answered(b, t, m[3], c, rest) ELSE Ignore(rest)
        [] m[1] = "prepare" -> IF opened THEN Prepare(b, t, rest) ELSE Ignore(rest)
        [] m[1] = "vote"    -> IF opened THEN Vote(b, t, c, m[3], rest) ELSE Ignore(rest)
        [] m[1] = "doom"    -> IF opened /\ ~tx[b][t].doomed THEN DoomHere(b, t, rest)
                               ELSE Ignore(rest)
        [] m[1] = "decide"  -> Decide(b, t, m[3], rest)
        [] m[1] = "decided" -> Decided(b, t, c, rest)
        [] m[1] = "forget"  -> Forget(b, t, rest)
        [] m[1] = "pub"     -> Publish(b, t, m[3], c, rest)
        [] m[1] = "plain"   -> Plain(b, t, rest)
        [] m[1] = "done"    -> Behind(b, t, c, rest)

Omit(q, i) == SubSeq(q, 1, i - 1) \o SubSeq(q, i + 1, Len(q))

Receive(c, b) ==
  LET l == <<c, b>> IN
  \E i \in (IF "fifo" \in Rules THEN {j \in {1} : net[l] # <<>>} ELSE 1..Len(net[l])) :
     Take(b, c, net[l][i], [net EXCEPT ![l] = Omit(@, i)])

\* What a broker does of its own accord in the same step: release what waits, then acknowledge.
Freed(b) == \E t \in Txs : CanLook(b, t) \/ CanAnswer(b, t)
Busy == \E b \in Brokers : Freed(b) \/ b \in due \/ \E t \in Txs : CanAcknowledge(b, t)
OfItself ==
  \E b \in Brokers :
    IF Freed(b) THEN \E t \in Txs : Look(b, t) \/ Answer(b, t)
    ELSE IF b \in due THEN Release(b)
    ELSE \E t \in Txs : CanAcknowledge(b, t) /\ Acknowledge(b, t)

Client == \/ \E t \in Txs : \/ Begin(t) \/ Commit(t)
                            \/ \E i \in Numbers(t) : Issue(t, i)
                            \/ \E b \in Brokers : \/ Doom(b, t)
                                                  \/ \E k \in Numbers(t) : Finish(b, t, k)
          \/ \E p \in Pubs : Emit(p)
          \/ \E p \in Plains : Say(p)

Init ==
  /\ tx = [b \in Brokers |-> [t \in Txs |-> Unknown]]
  /\ net = [l \in Links |-> <<>>]
  /\ plain = [b \in Brokers |-> {}]
  /\ held = [b \in Brokers |-> <<>>]
  /\ under = [b \in Brokers |-> [p \in Plains |-> {}]]
  /\ due = {}
  /\ after = [b \in Brokers |-> [p \in Plains |-> {}]]
  /\ got = [p \in Pubs |-> {}]

Next == IF Busy THEN OfItself ELSE Client \/ \E l \in Links : Receive(l[1], l[2])

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
Committed(b, t) == tx[b][t].st \in {"committed", "gone"}
Aborted(b, t) == tx[b][t].st \in {"aborted", "dead"}

OneOutcome == \A t \in Txs : \A b, c \in Brokers : ~(Committed(b, t) /\ Aborted(c, t))

\* The snapshot is the same set of transactions at every broker.
SnapshotAgree ==
  \A t \in Txs : \A b, c \in {d \in Brokers : tx[d][t].st # "none"} :
     tx[b][t].snap = tx[c][t].snap

\* Thread, Trigger, Trigger*: at each broker operations come in the transaction's order.  What
\* several clients do on one tcm, or several brokers on one advertisement, is not ordered.
Unordered(t, i, j) == Ops[t][i].of # 0 /\ Ops[t][i].of = Ops[t][j].of /\ Ops[t][i].by # Ops[t][j].by
InOrderEverywhere ==
  \A b \in Brokers, t \in Txs :
    LET log == tx[b][t].log IN
    \A i, j \in 1..Len(log) : i < j => log[i] < log[j] \/ Unordered(t, log[i], log[j])

\* A broker that votes yes or has committed has handled all operations that visit it.
Complete ==
  \A b \in Brokers, t \in Txs :
    tx[b][t].st \in {"preparing", "committed"} =>
      {i \in Visits[t][b] : Ops[t][i].on = {}} \subseteq Range(tx[b][t].log)

\* A plain publication is routed on one version all along its way ...
OneSide == \A p \in Pubs : Cardinality(got[p]) <= 1
\* ... and one that follows it from the same place never on an older one.
Forwards ==
  \A p, q \in Pubs : p < q /\ Home[p] = Home[q] => \A v \in got[p], w \in got[q] : v \subseteq w

\* Who must come before whom, by what each has read.  A plain operation is one unit, with all that
\* it triggers, wherever it comes to.  Two plain operations are not compared: they converge.
Sees(t) == tx[Edge[t]][t].snap
TxPrecedes(t, u) ==
  \E b \in Brokers : \/ R(b, u) \cap W(b, t) # {} /\ t \in Sees(u)
                     \/ R(b, t) \cap W(b, u) # {} /\ u \notin Sees(t)
Visit(p) == {<<q, b>> \in Plains \X Brokers : Cause[q] = p /\ b \in DOMAIN Touch[q]}
PlainPrecedes(p, t) ==
  \E <<q, b>> \in Visit(p) :
     \/ Touch[q][b].w \cap R(b, t) # {} /\ q \in tx[b][t].base
     \/ Touch[q][b].r \cap W(b, t) # {} /\ q \in plain[b] /\ t \notin after[b][q]
PrecedesPlain(t, p) ==
  \E <<q, b>> \in Visit(p) :
     \/ Touch[q][b].w \cap R(b, t) # {} /\ q \notin tx[b][t].base
     \/ Touch[q][b].r \cap W(b, t) # {} /\ q \in plain[b] /\ t \in after[b][q]
Precedes(x, y) ==
  CASE x \in Txs /\ y \in Txs -> TxPrecedes(x, y)
    [] x \in Plains /\ y \in Txs -> PlainPrecedes(x, y)
    [] x \in Txs /\ y \in Plains -> PrecedesPlain(x, y)
    [] OTHER -> FALSE

ReadAt(t, p) == {b \in DOMAIN Touch[p] : Touched(t, b, Numbers(t), "r") \cap Touch[p][b].w # {}}
WrittenAt(t, p) == {b \in DOMAIN Touch[p] : Touched(t, b, Numbers(t), "w") \cap Touch[p][b].r # {}}
Spread ==
  \A t \in Txs, p \in Plains :
    /\ WrittenAt(t, p) \subseteq ReadAt(t, p)
    /\ \A b \in ReadAt(t, p) : Path(Hops, b, From[p]) \cap DOMAIN Touch[p] \subseteq ReadAt(t, p)

RECURSIVE Orderable(_)
Orderable(S) == S = {} \/ \E first \in S : /\ \A x \in S \ {first} : ~Precedes(x, first)
                                           /\ Orderable(S \ {first})

Serializable ==
  LET done == {t \in Txs : \E b \in Brokers : Committed(b, t)}
              \cup {p \in Plains : Cause[p] = p /\ \E b \in Brokers : p \in plain[b]}
  IN  Cardinality(done) > 1 => Orderable(done)

\* When nothing more can happen, nothing is left that waits: no deadlock, no old version, no mark.
Over ==
  /\ \A b \in Brokers : held[b] = <<>> /\ \A t \in Txs : tx[b][t].st \in {"gone", "dead"}
  /\ \A p \in Pubs : got[p] # {}
  /\ \A p \in Plains : \A b \in DOMAIN Touch[p] : p \in plain[b]
  /\ \A b \in Brokers, p \in Plains : under[b][p] = {}
AtRest == (\A l \in Links : net[l] = <<>>) => Over \/ ENABLED Next

\* With fairness: it comes to that.
Ends == <>Over
=============================================================================
