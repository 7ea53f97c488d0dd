------------------------------- MODULE DTxNI -------------------------------
(***************************************************************************)
(* Compensation: one D-TX-NI transaction that changes the shared tables at  *)
(* once, beside plain operations, and may be aborted at any moment. One     *)
(* step is one message received by one broker, or one operation of a        *)
(* client, as in padres_tx/engines/d_tx_ni/broker.py,                       *)
(* padres_tx/protocol/compensation.py and overlay/broker/waiting.py;        *)
(* proofs/README.md maps the actions to functions.                          *)
(*                                                                          *)
(* An operation of a client covers all its earlier ones of the same sort    *)
(* (Tables.tla: the event space is one point), so its edge broker drops all *)
(* of those.                                                                *)
(*                                                                          *)
(* Nothing is acknowledged, and clients do not wait for each other: the     *)
(* order of operations of different clients is left open. A broker may hold *)
(* operations for a while, as for an undecided D-TX.                        *)
(*                                                                          *)
(* Left out: publications, other transactions, clients that leave, crashes. *)
(***************************************************************************)
EXTENDS Tables

CONSTANTS
  Coord,     \* the coordinator, one of the clients
  Subs,      \* the subscriptions at first: SUBSET (Clients \X Nat)
  Ads,       \* the advertisements at first
  InTx,      \* [some clients -> the operations of each in the transaction: Seq([kind, n])]
  Plain,     \* [some clients -> the plain operations of each: Seq([kind, n])]
  Holding,   \* brokers that may hold operations back, once
  Rules      \* AllRules, or fewer in a negative control

W(kind, n) == [kind |-> kind, n |-> n]

AllRules == {
  "backwards",    \* what was done last is undone first
  "what changed", \* just what was dropped comes back, and just what was stored goes
  "reserved",     \* a client's plain operations on entries of its undecided transaction wait
  "in flight",    \* what was on its way when the abort came is still carried out on arrival
  "not begun" }   \* what still waited at its client's edge broker then is not

VARIABLES brk, net, said
vars == <<brk, net, said>>

Edge == Home[Coord]
Sort(kind) == IF kind \in Subscribing THEN Subscribing ELSE Advertising
Table(s, kind) == IF kind \in Subscribing THEN s.prt ELSE s.srt
Yes(kind) == IF kind \in Subscribing THEN "sub" ELSE "adv"
No(kind) == IF kind \in Subscribing THEN "usub" ELSE "uadv"
Numbers(s, client, kind) == {e[2] : e \in {x \in Table(s, kind) : x[1] = client}}

InitBroker(b) ==
  [st |-> "open",    \* the transaction
   srt |-> Ads,
   prt |-> Known(b, Subs, Ads),
   undos |-> <<>>,   \* what clients of this broker have done in it: reserved words, and what to undo
   holds |-> "no",   \* whether a D-TX that is undecided here conflicts with all: "no", "yes", "over"
   held |-> <<>>,    \* what waits for that
   waiting |-> [c \in {x \in Clients : Home[x] = b} |-> <<>>],  \* what waits for reserved words
   words |-> <<>>,   \* what its clients have said, in the order in which it was done
   doomed |-> FALSE,
   o |-> [n \in Nbr[b] |-> <<>>]]

\* Broker._must_wait.
Waits(s) == s.holds = "yes" \/ s.held # <<>>

RECURSIVE Send(_, _)
Send(s, sent) == IF sent = {} THEN s
                 ELSE LET a == CHOOSE x \in sent : TRUE
                      IN  Send(Put(s, {a[1]}, a[2]), sent \ {a})

\* Broker._apply: as part of the transaction, or as a plain operation.
Operate(s, b, m) ==
  LET tag == IF s.st = "open" THEN m[6] ELSE "plain"
      Same(e) == tag
      out == Apply(s, b, [m EXCEPT ![6] = tag], Same)
  IN  Send(out.s, out.sent)

\* Broker.admit: a client's word, with its number and what it changes.
Do(s, b, c, w, tag) ==
  LET drop == Numbers(s, c, w.kind)
      n == IF w.kind = Yes(w.kind) THEN w.n ELSE 0
      undo == [client |-> c, kind |-> w.kind, n |-> n, dropped |-> drop]
      s1 == [s EXCEPT !.words = Append(@, [client |-> c, word |-> w, tag |-> tag]),
                      !.undos = IF tag = "tx" /\ s.st = "open" THEN Append(@, undo) ELSE @]
  IN  Operate(s1, b, Op(w.kind, c, n, drop, tag))

IsRefused(s, c, w) == w.kind = No(w.kind) /\ Numbers(s, c, w.kind) = {}

\* DTxNI.resume, for what a client of this broker says in the transaction.
Resume(s, b, c, w) ==
  IF s.st # "open"
  THEN IF "not begun" \in Rules \/ IsRefused(s, c, w) THEN s ELSE Do(s, b, c, w, "tx")
  ELSE IF IsRefused(s, c, w) THEN [s EXCEPT !.doomed = TRUE]
  ELSE Do(s, b, c, w, "tx")

\* DTxNI.apply: reserved at once, though it may have to wait and has changed nothing so far.
Tell(s, b, c, w) ==
  LET nothing == [client |-> c, kind |-> w.kind, n |-> 0, dropped |-> {}]
      s1 == [s EXCEPT !.undos = Append(@, nothing)]
  IN  IF Waits(s) THEN [s1 EXCEPT !.held = Append(@, <<"say", c, w>>)] ELSE Resume(s1, b, c, w)

\* Broker._carry_out.
CarryOut(s, b, c, w) == IF IsRefused(s, c, w) THEN s ELSE Do(s, b, c, w, "plain")

\* Broker._shared.
Shared(s, b, c, w) ==
  IF Waits(s) THEN [s EXCEPT !.held = Append(@, <<"plain", c, w>>)] ELSE CarryOut(s, b, c, w)

\* compensation.reserves.
Reserved(s, c, w) ==
  /\ "reserved" \in Rules
  /\ \E i \in 1..Len(s.undos) : /\ s.undos[i].client = c
                                /\ Sort(s.undos[i].kind) = Sort(w.kind)

\* Broker._plain.
SaidPlainly(s, b, c, w) ==
  IF s.waiting[c] # <<>> \/ Reserved(s, c, w)
  THEN [s EXCEPT !.waiting[c] = Append(@, w)]
  ELSE Shared(s, b, c, w)

RECURSIVE ReleaseHeld(_, _), ReleaseWaiting(_, _)

\* Broker.release: what waits for a D-TX, then what waits for reserved words.
ReleaseHeld(s, b) ==
  IF s.holds = "yes" \/ s.held = <<>> THEN s
  ELSE LET m == Head(s.held)
           \* What comes of it does not queue: it takes the place of the one that has waited.
           rest == Tail(s.held)
           s1 == [s EXCEPT !.held = <<>>]
           s2 == CASE m[1] = "op" -> Operate(s1, b, m)
                   [] m[1] = "say" -> Resume(s1, b, m[2], m[3])
                   [] m[1] = "plain" -> CarryOut(s1, b, m[2], m[3])
       IN  ReleaseHeld([s2 EXCEPT !.held = rest], b)

ReleaseWaiting(s, b) ==
  LET free == {c \in DOMAIN s.waiting : s.waiting[c] # <<>> /\ ~Reserved(s, c, Head(s.waiting[c]))}
  IN  IF free = {} THEN s
      ELSE LET c == CHOOSE x \in free : TRUE
               s1 == [s EXCEPT !.waiting[c] = Tail(@)]
           IN  ReleaseWaiting(Shared(s1, b, c, Head(s.waiting[c])), b)

Release(s, b) == ReleaseWaiting(ReleaseHeld(s, b), b)

\* DTxNI.apply and came_late, and a plain operation of a neighbour.
Receives(s, b, m) ==
  IF m[6] = "tx" /\ s.st = "aborted" /\ "in flight" \notin Rules THEN s
  ELSE IF Waits(s) THEN [s EXCEPT !.held = Append(@, m)]
  ELSE Operate(s, b, m)

(***************************************************************************)
(* Undoing.                                                                 *)
(***************************************************************************)
\* Broker.put_back.
PutBack(s, b, m) == IF Waits(s) THEN [s EXCEPT !.held = Append(@, m)] ELSE Operate(s, b, m)

RECURSIVE Back(_, _, _, _)
Back(s, b, undo, numbers) ==
  IF numbers = {} THEN s
  ELSE LET k == CHOOSE x \in numbers : \A y \in numbers : x <= y
       IN  Back(PutBack(s, b, Op(Yes(undo.kind), undo.client, k, {}, "plain")), b, undo,
                numbers \ {k})

\* compensation.inverses: what was dropped comes back before what was stored goes.  Without "what
\* changed" a yes is undone by saying no.
Inverses(s, b, undo) ==
  LET s1 == Back(s, b, undo, undo.dropped)
      drop == IF "what changed" \in Rules THEN {undo.n} \ {0}
              ELSE IF undo.kind = Yes(undo.kind) THEN Numbers(s1, undo.client, undo.kind) ELSE {}
  IN  IF drop = {} THEN s1
      ELSE PutBack(s1, b, Op(No(undo.kind), undo.client, 0, drop, "plain"))

RECURSIVE Compensate(_, _, _)
Compensate(s, b, undos) ==
  IF undos = <<>> THEN s
  ELSE LET last == Len(undos) IN
       IF "backwards" \in Rules
       THEN Compensate(Inverses(s, b, undos[last]), b, SubSeq(undos, 1, last - 1))
       ELSE Compensate(Inverses(s, b, undos[1]), b, Tail(undos))

\* DTxNI.decided, and TwoPhaseCommit.spread.
Decide(s, b, src, committed) ==
  LET s1 == [s EXCEPT !.st = IF committed THEN "committed" ELSE "aborted", !.undos = <<>>]
      s2 == IF committed THEN s1 ELSE Compensate(s1, b, s.undos)
  IN  Release(Put(s2, Nbr[b] \ {src}, <<"decide", committed>>), b)

Take(s, b, src, m) ==
  CASE m[1] = "op"     -> Receives(s, b, m)
    [] m[1] = "decide" -> Decide(s, b, src, m[2])

(***************************************************************************)
(* Behaviours.                                                              *)
(***************************************************************************)
Step(b, s, taken) ==
  /\ brk' = [brk EXCEPT ![b] = [s EXCEPT !.o = [n \in Nbr[b] |-> <<>>]]]
  /\ net' = Sent(b, s, taken)

Init ==
  /\ brk = [b \in Brokers |-> InitBroker(b)]
  /\ net = [l \in Links |-> <<>>]
  /\ said = [tx |-> [c \in DOMAIN InTx |-> 0], plain |-> [c \in DOMAIN Plain |-> 0]]

Receive(c, b) ==
  /\ net[<<c, b>>] # <<>>
  /\ Step(b, Take(brk[b], b, c, Head(net[<<c, b>>])), [net EXCEPT ![<<c, b>>] = Tail(@)])
  /\ UNCHANGED said

\* A client of the transaction says the next.
Say(c) ==
  LET b == Home[c] IN
  /\ brk[b].st = "open" /\ ~brk[b].doomed
  /\ said.tx[c] < Len(InTx[c])
  /\ said' = [said EXCEPT !.tx[c] = @ + 1]
  /\ Step(b, Tell(brk[b], b, c, InTx[c][said.tx[c] + 1]), net)

SayPlain(c) ==
  LET b == Home[c] IN
  /\ said.plain[c] < Len(Plain[c])
  /\ said' = [said EXCEPT !.plain[c] = @ + 1]
  /\ Step(b, SaidPlainly(brk[b], b, c, Plain[c][said.plain[c] + 1]), net)

\* An abort, at any moment.
Abort ==
  /\ brk[Edge].st = "open"
  /\ Step(Edge, Decide(brk[Edge], Edge, Edge, FALSE), net)
  /\ UNCHANGED said

\* All have said what they want, and each edge broker has done it.
Commit ==
  /\ brk[Edge].st = "open"
  /\ \A c \in DOMAIN InTx : said.tx[c] = Len(InTx[c])
  /\ \A b \in Brokers : ~brk[b].doomed /\ \A i \in 1..Len(brk[b].held) : brk[b].held[i][1] # "say"
  /\ Step(Edge, Decide(brk[Edge], Edge, Edge, TRUE), net)
  /\ UNCHANGED said

\* A D-TX votes here, and later is decided.
Hold(b) ==
  /\ b \in Holding /\ brk[b].holds = "no"
  /\ Step(b, [brk[b] EXCEPT !.holds = "yes"], net)
  /\ UNCHANGED said

LetGo(b) ==
  /\ brk[b].holds = "yes"
  /\ Step(b, Release([brk[b] EXCEPT !.holds = "over"], b), net)
  /\ UNCHANGED said

Next ==
  \/ \E l \in Links : Receive(l[1], l[2])
  \/ \E c \in DOMAIN InTx : Say(c)
  \/ \E c \in DOMAIN Plain : SayPlain(c)
  \/ \E b \in Brokers : Hold(b) \/ LetGo(b)
  \/ Abort
  \/ Commit

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
RECURSIVE Last(_, _, _)
\* A client's words in a table after more of them: the last one decides.
Last(table, words, kinds) ==
  IF words = <<>> THEN table
  ELSE LET w == Head(words)
           others == {e \in table : e[1] # w.client}
           next == IF w.word.kind \notin kinds THEN table
                   ELSE IF w.word.kind = Yes(w.word.kind)
                   THEN others \cup {<<w.client, w.word.n>>} ELSE others
       IN  Last(next, Tail(words), kinds)

\* What the clients of b hold: as if an aborted transaction had never been.
Holds(b, table, kinds) ==
  LET counts(w) == w.tag = "plain" \/ brk[b].st # "aborted"
  IN  Last({e \in table : Home[e[1]] = b}, SelectSeq(brk[b].words, counts), kinds)

\* As soon as a client's edge broker has undone, its own clients hold what they held.
Undone ==
  \A b \in Brokers : brk[b].st = "aborted" /\ brk[b].held = <<>> =>
    /\ {e \in brk[b].srt : Home[e[1]] = b} = Holds(b, Ads, Advertising)
    /\ {e \in brk[b].prt : Home[e[1]] = b} = Holds(b, Subs, Subscribing)

AtRest ==
  /\ \A l \in Links : net[l] = <<>>
  /\ \A b \in Brokers : brk[b].holds # "yes"
  /\ brk[Edge].st # "open"

\* At rest nothing waits, all brokers have one outcome, and the tables are what the live operations
\* make them (proofs/oracle.py).
Converged ==
  AtRest =>
    LET ads == UNION {Holds(b, Ads, Advertising) : b \in Brokers}
        subs == UNION {Holds(b, Subs, Subscribing) : b \in Brokers}
    IN  \A b \in Brokers :
          /\ brk[b].st = brk[Edge].st
          /\ brk[b].held = <<>> /\ brk[b].undos = <<>>
          /\ \A c \in DOMAIN brk[b].waiting : brk[b].waiting[c] = <<>>
          /\ brk[b].srt = ads
          /\ brk[b].prt = Known(b, subs, ads)

\* Of an aborted transaction no entry is left anywhere.
NoGhost ==
  (AtRest /\ brk[Edge].st = "aborted") =>
    \A b \in Brokers, c \in DOMAIN InTx : \A i \in 1..Len(InTx[c]) :
      <<c, InTx[c][i].n>> \notin Table(brk[b], InTx[c][i].kind)
=============================================================================
