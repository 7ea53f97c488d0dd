-------------------------------- MODULE STx --------------------------------
(***************************************************************************)
(* S-TX: one static transaction, amid plain advertisements of others, on    *)
(* the shared routing tables.  One step is one message taken in by one      *)
(* broker, as in padres_tx/engines/s_tx.py, overlay/broker.py and           *)
(* overlay/routing.py; proofs/README.md maps the actions to functions.      *)
(*                                                                          *)
(* The tables are real (Tables.tla), and so are the nested acknowledgements *)
(* of an (un-)advertisement.                                                *)
(*                                                                          *)
(* Not here: crashes, time-outs (a refusal stands for them), holes (an      *)
(* un-subscription drops whole entries), what other engines hold back.      *)
(***************************************************************************)
EXTENDS Tables

CONSTANTS
  Coord,     \* the coordinator, one of the clients
  Subs,      \* the subscriptions at first: SUBSET (Clients \X Nat)
  Ads,       \* the advertisements at first
  Steps,     \* Seq([kind, client, n, drop, after]); n is 0 when nothing is stored
  Plain,     \* Seq of plain operations [kind, client, n, drop], said in this order
  Refusing,  \* edge brokers that may refuse
  Expected,  \* [publishing steps -> who gets it]
  Rules      \* AllRules, or fewer in a negative control

S(kind, client, n, drop, after) ==
  [kind |-> kind, client |-> client, n |-> n, drop |-> drop, after |-> after]

AllRules == {
  "all answer",  \* the decision needs the answer of every edge broker
  "refuse",      \* one refusal is enough for an abort
  "owner",       \* only the coordinator's edge broker decides
  "order",       \* a step is carried out when those that it depends on have been
  "complete",    \* what depends on an (un-)advertisement waits until it is everywhere
  "drops follow", \* neighbours in the span are told what to drop: it may be on its way to them
  "own follows" } \* ... and that the new entry would not have come to them from here

VARIABLES brk, net, inbox, plain
vars == <<brk, net, inbox, plain>>

Edge == Home[Coord]
Up(b) == HopTo(b, Coord)

Members == {Coord} \cup {Steps[i].client : i \in 1..Len(Steps)}
Edges == {Home[c] : c \in Members}
Span == UNION {Path(Hops, Edge, e) : e \in Edges}
Around(b) == Nbr[b] \cap Span
All == 1..Len(Steps)

(***************************************************************************)
(* Tasks (overlay/broker.py): <<>> (nobody waits), <<i>> (the               *)
(* (un-)advertisement of step i) or <<i, e>> (entry e, which that one has   *)
(* set in motion).                                                          *)
(***************************************************************************)

\* Broker._ask: a neighbour does its part of a task, as a task of its own.  `asked` is a set of
\* <<neighbour, message>>.
RECURSIVE Ask(_, _, _)
Ask(s, asked, task) ==
  IF asked = {} THEN s
  ELSE LET a == CHOOSE x \in asked : TRUE
           s1 == Put(s, {a[1]}, a[2])
           s2 == IF task = <<>> THEN s1
                 ELSE [s1 EXCEPT !.waits = @ \cup {[from |-> a[1], part |-> a[2][6], task |-> task]}]
       IN  Ask(s2, asked \ {a}, task)

\* Broker._apply: change the tables, and ask the neighbours for their part.
ApplyAll(s, b, m) ==
  LET task == m[6]
      Part(e) == IF task = <<>> THEN <<>> ELSE Append(task, e)
      out == Apply(s, b, m, Part)
  IN  Ask(out.s, out.sent, task)

\* Which neighbour asked for a task.
Asker(b, task) ==
  IF Len(task) = 1 THEN HopTo(b, Steps[task[1]].client) ELSE HopTo(b, task[2][1])

(***************************************************************************)
(* The engine at one broker.                                                *)
(***************************************************************************)
InitBroker(b) ==
  [st |-> "none", unanswered |-> {}, handled |-> {}, started |-> {}, awaited |-> {},
   acked |-> FALSE,
   srt |-> Ads,
   prt |-> Known(b, Subs, Ads),
   refused |-> FALSE,
   waits |-> {},     \* parts of tasks that neighbours were asked for and have not answered
   got |-> <<>>,     \* what its clients get in this step
   o |-> [n \in Nbr[b] |-> <<>>]]

Ready(s) == {i \in All : /\ i \notin s.started
                         /\ "order" \in Rules => Steps[i].after \subseteq s.handled}
First(set) == IF "order" \in Rules THEN CHOOSE i \in set : \A j \in set : i <= j
              ELSE CHOOSE i \in set : \A j \in set : i >= j

RECURSIVE CarryOn(_, _), Finished(_, _, _), Complete(_, _, _, _), Handle(_, _, _)

\* STx._finish and STx._acknowledge.
Acknowledge(s, b) ==
  IF s.awaited # {} \/ s.acked \/ s.st \notin {"aborted", "finished"} THEN s
  ELSE LET s1 == [s EXCEPT !.acked = TRUE] IN
       IF b = Edge THEN s1 ELSE Put(s1, {Up(b)}, <<"decided">>)

Finish(s, b) ==
  IF s.st # "committed" \/ s.handled # All THEN s
  ELSE Acknowledge([s EXCEPT !.st = "finished"], b)

\* STx._complete: over the span, then on with what depends on it.
Complete(s, b, i, src) ==
  LET s1 == [s EXCEPT !.started = @ \cup {i}, !.handled = @ \cup {i}]
      s2 == Put(s1, Around(b) \ {src}, <<"complete", i>>)
  IN  CarryOn(s2, b)

\* Broker._finished.
Finished(s, b, task) ==
  IF task = <<>> \/ \E w \in s.waits : w.task = task THEN s
  ELSE IF Asker(b, task) = b THEN Complete(s, b, task[1], b)
  ELSE Put(s, {Asker(b, task)}, <<"done", task>>)

\* A plain operation, an (un-)advertisement of a step, or what that has triggered.
Operate(s, b, m) == Finished(ApplyAll(s, b, m), b, m[6])

\* Routing.apply_here: as a neighbour's operation, but those around do alike.
ApplyHere(s, b, i) ==
  LET step == Steps[i]
      src == HopTo(b, step.client)
      n == IF \/ src = b
              \/ \E a \in s.srt : HopTo(b, a[1]) # src
           THEN step.n ELSE 0
      out == ApplySub(s, b, Op(step.kind, step.client, n, step.drop, <<>>))
      others == {f \in out.sent : f[1] \notin Span}
      to(h) == {f[2] : f \in {g \in out.sent : g[1] = h}}
      stored(h) == \E m \in to(h) : m[4] # 0
      gone(h) == (IF "drops follow" \in Rules THEN UNION {m[5] : m \in to(h)} ELSE {})
                 \cup (IF "own follows" \in Rules /\ step.n # 0 /\ ~stored(h) THEN {step.n} ELSE {})
      drops == {<<h, Op("usub", step.client, 0, gone(h), <<>>)>> :
                  h \in {x \in Around(b) \ {src} : gone(x) # {}}}
  IN  Ask(out.s, others \cup drops, <<>>)

\* STx._publish: to the broker's own clients, and to brokers outside the span.
Deliver(s, b, i, within) ==
  LET hops == {HopTo(b, e[1]) : e \in s.prt}
      mine == {e[1] : e \in {x \in s.prt : Home[x[1]] = b}}
      s1 == [s EXCEPT !.got = @ \o <<[step |-> i, to |-> mine]>>]
  IN  Put(s1, (hops \cap Nbr[b]) \ within, <<"pub", i>>)

Handle(s, b, i) ==
  LET step == Steps[i]
      s1 == [s EXCEPT !.started = @ \cup {i}]
      here == Home[step.client] = b
  IN  IF step.kind = "pub"
      THEN Deliver([s1 EXCEPT !.handled = @ \cup {i}], b, i, Span)
      ELSE IF step.kind \in {"sub", "usub"}
      THEN ApplyHere([s1 EXCEPT !.handled = @ \cup {i}], b, i)
      ELSE LET s2 == IF "complete" \in Rules THEN s1 ELSE [s1 EXCEPT !.handled = @ \cup {i}]
           IN  IF ~here THEN s2
               ELSE Operate(s2, b, Op(step.kind, step.client, step.n, step.drop, <<i>>))

\* STx._carry_on: the lowest first, as the plan's order has it.
CarryOn(s, b) ==
  IF s.st # "committed" THEN s
  ELSE IF Ready(s) = {} THEN Finish(s, b)
  ELSE CarryOn(Handle(s, b, First(Ready(s))), b)

\* STx._spread.
Spread(s, b, committed) ==
  LET beyond == Around(b) \ {Up(b)}
      s1 == Put([s EXCEPT !.st = IF committed THEN "committed" ELSE "aborted",
                          !.awaited = beyond], beyond, <<"decide", committed>>)
  IN  IF committed THEN CarryOn(s1, b) ELSE Acknowledge(s1, b)

\* STx._admitted.
Admitted(s, b, src, edge, ok) ==
  IF s.st # "planned" THEN s
  ELSE LET s1 == Put([s EXCEPT !.unanswered = @ \ {edge}], Around(b) \ {src},
                     <<"admitted", edge, ok>>)
       IN  IF /\ b = Edge
              /\ IF ok THEN s1.unanswered = {} \/ "all answer" \notin Rules ELSE "refuse" \in Rules
           THEN Spread(s1, b, ok) ELSE s1

\* STx._plan, with the answer of this edge broker.
Plan(s, b, src, ok) ==
  LET s1 == Put([s EXCEPT !.st = "planned", !.unanswered = Edges, !.refused = ~ok],
                Around(b) \ {src}, <<"plan">>)
  IN  IF b \in Edges THEN Admitted(s1, b, b, b, ok) ELSE s1

Answers(b) == IF b \in Refusing THEN {TRUE, FALSE} ELSE {TRUE}

Take(s, b, src, m, ok) ==
  CASE m[1] = "plan"     -> Plan(s, b, src, ok)
    [] m[1] = "admitted" -> Admitted(s, b, src, m[2], m[3])
    [] m[1] = "decide"   -> Spread(s, b, m[2])
    [] m[1] = "complete" -> Complete(s, b, m[2], src)
    [] m[1] = "decided"  -> Acknowledge([s EXCEPT !.awaited = @ \ {src}], b)
    [] m[1] = "op"       -> Operate(s, b, m)
    [] m[1] = "done"     -> LET mine == {w \in s.waits : w.from = src /\ w.part = m[2]}
                            IN  IF mine = {} THEN s
                                ELSE Finished([s EXCEPT !.waits = @ \ mine], b,
                                              (CHOOSE w \in mine : TRUE).task)
    [] m[1] = "pub"      -> Deliver(s, b, m[2], {src})

(***************************************************************************)
(* Behaviours.                                                              *)
(***************************************************************************)
Step(b, s, taken) ==
  /\ brk' = [brk EXCEPT ![b] = [s EXCEPT !.o = [n \in Nbr[b] |-> <<>>], !.got = <<>>]]
  /\ net' = Sent(b, s, taken)
  /\ inbox' = [c \in Clients |-> IF Home[c] # b THEN inbox[c]
                 ELSE inbox[c] \o SelectSeq([i \in 1..Len(s.got) |->
                                     IF c \in s.got[i].to THEN s.got[i].step ELSE 0],
                                   LAMBDA x : x # 0)]

Init ==
  /\ brk = [b \in Brokers |-> InitBroker(b)]
  /\ net = [l \in Links |-> <<>>]
  /\ inbox = [c \in Clients |-> <<>>]
  /\ plain = 0

Receive(c, b) ==
  /\ <<c, b>> \in Links /\ net[<<c, b>>] # <<>>
  /\ LET m == Head(net[<<c, b>>]) IN
     \E ok \in (IF m[1] = "plan" THEN Answers(b) ELSE {TRUE}) :
        Step(b, Take(brk[b], b, c, m, ok), [net EXCEPT ![<<c, b>>] = Tail(@)])
  /\ UNCHANGED plain

Submit ==
  /\ brk[Edge].st = "none"
  /\ \E ok \in Answers(Edge) : Step(Edge, Plan(brk[Edge], Edge, Edge, ok), net)
  /\ UNCHANGED plain

SayPlain ==
  /\ plain < Len(Plain)
  /\ plain' = plain + 1
  /\ LET p == Plain[plain + 1]
         b == Home[p.client]
     IN  Step(b, Operate(brk[b], b, Op(p.kind, p.client, p.n, p.drop, <<>>)), net)

\* Only without the rule "owner": a broker that has waited long enough aborts on its own.
GiveUp(b) ==
  /\ "owner" \notin Rules /\ brk[b].st = "planned"
  /\ Step(b, Spread(brk[b], b, FALSE), net)
  /\ UNCHANGED plain

Next == Submit \/ SayPlain \/ (\E l \in Links : Receive(l[1], l[2])) \/ \E b \in Brokers : GiveUp(b)
Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
Decided(b) == brk[b].st \in {"committed", "finished", "aborted"}
IsCommitted(b) == brk[b].st \in {"committed", "finished"}

OneOutcome == \A b, c \in Span : ~(IsCommitted(b) /\ brk[c].st = "aborted")

\* Nobody carries out what an edge broker has refused for its clients.
NobodyOverruled == (\E b \in Edges : brk[b].refused) => \A b \in Span : ~IsCommitted(b)

Quiet == \A l \in Links : net[l] = <<>>

Said == (IF IsCommitted(Edge) THEN Steps ELSE <<>>)
Live(table, kinds) == Effect(Effect(table, Said, kinds), SubSeq(Plain, 1, plain), kinds)

\* At rest the tables are what the live operations make them (proofs/oracle.py).
Converged ==
  Quiet => LET ads == Live(Ads, Advertising)
               subs == Live(Subs, Subscribing)
           IN  \A b \in Brokers : brk[b].srt = ads /\ brk[b].prt = Known(b, subs, ads)

\* At rest all is decided and done.
AtRest == Quiet => \A b \in Span : brk[b].st \in {"none", "aborted", "finished"} /\
                     (brk[b].st # "none" => brk[b].acked /\ brk[b].waits = {})

Count(q, x) == Cardinality({i \in 1..Len(q) : q[i] = x})

\* A publication goes once to each who is to get it, and to nobody else; nobody else's at all.
Delivered ==
  /\ \A c \in Clients, i \in DOMAIN Expected : Count(inbox[c], i) <= 1
  /\ Quiet => \A i \in DOMAIN Expected : \A c \in Clients :
       Count(inbox[c], i) = IF IsCommitted(Edge) /\ c \in Expected[i] THEN 1 ELSE 0
=============================================================================
