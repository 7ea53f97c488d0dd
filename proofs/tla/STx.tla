-------------------------------- MODULE STx --------------------------------
(***************************************************************************)
(* S-TX: one static transaction on the shared routing tables, beside plain  *)
(* advertisements of other clients, or with a D-TX that reads the tables.   *)
(* One step is one message received by one broker, as in                    *)
(* padres_tx/engines/s_tx/broker.py, overlay/broker/operations.py and       *)
(* overlay/tables/routing.py; proofs/README.md maps the actions to          *)
(* functions.                                                               *)
(*                                                                          *)
(* The tables are real (Tables.tla), and so are the nested acknowledgements *)
(* of an (un-)advertisement and of what neighbours were sent.               *)
(*                                                                          *)
(* The reader is a D-TX that reads all tables and changes nothing. Its      *)
(* Init, its reading and its Prepare are one message, because D-TX refuses  *)
(* a transaction whose reads have changed in between. Here only what S-TX   *)
(* declares (STx.undecided) refuses it, so less than in the code, where it  *)
(* also loses to operations that are not done everywhere.                   *)
(*                                                                          *)
(* Left out: crashes, timeouts (a refusal stands for them), holes (an       *)
(* un-subscription drops whole entries).                                    *)
(***************************************************************************)
EXTENDS Tables

CONSTANTS
  Coord,     \* the coordinator, one of the clients
  Subs,      \* the subscriptions at first: SUBSET (Clients \X Nat)
  Ads,       \* the advertisements at first
  Steps,     \* Seq([kind, client, n, drop, after]); n is 0 when nothing is stored
  Plain,     \* Seq of plain operations [kind, client, n, drop], said in this order
  Refusing,  \* edge brokers that may refuse
  Readers,   \* brokers at which the reader may begin
  Expected,  \* [publishing steps -> the clients that receive it]
  Rules      \* AllRules, or fewer in a negative control

\* What a reader should find is worked out for the transaction alone.
ASSUME Readers = {} \/ Plain = <<>>

S(kind, client, n, drop, after) ==
  [kind |-> kind, client |-> client, n |-> n, drop |-> drop, after |-> after]

AllRules == {
  "all answer",  \* the decision needs the answer of every edge broker
  "refuse",      \* one refusal is enough for an abort
  "owner",       \* only the coordinator's edge broker decides
  "order",       \* a step is carried out after the steps that it depends on
  "complete",    \* what depends on an (un-)advertisement waits until it is everywhere
  "drops follow", \* neighbours in the span are told what to drop: it may be on its way to them
  "own follows", \* ... and that the new entry would not have come to them from here
  "outside",     \* Decided waits for the answers of those that were told
  "nested",      \* who is asked answers when all whom it has asked have answered
  "settled" }    \* a broker settles when it receives Settled, not when it has carried out the steps

VARIABLES brk, net, inbox, plain, reader
vars == <<brk, net, inbox, plain, reader>>

Edge == Home[Coord]
Up(b) == HopTo(b, Coord)

Members == {Coord} \cup {Steps[i].client : i \in 1..Len(Steps)}
Edges == {Home[c] : c \in Members}
Span == UNION {Path(Hops, Edge, e) : e \in Edges}
Around(b) == Nbr[b] \cap Span
All == 1..Len(Steps)

(***************************************************************************)
(* Tasks (broker/requests.py): the (un-)advertisement of a step; an         *)
(* entry that it has moved at some broker (moved, by); what a broker has    *)
(* sent to others of a step that it has carried out by itself (by).         *)
(***************************************************************************)
Nobody == [step |-> 0, moved |-> <<>>, by |-> ""]
Advertised(i) == [Nobody EXCEPT !.step = i]
Told(i, b) == [Nobody EXCEPT !.step = i, !.by = b]

\* Which neighbour asked for a task; b itself if it has begun here.
Asker(b, task) ==
  IF task.by = b THEN b
  ELSE HopTo(b, IF task.moved = <<>> THEN Steps[task.step].client ELSE task.moved[1])

\* Broker._ask: a neighbour does its part of a task, as a task of its own.  `asked` is a set of
\* <<neighbour, message>>.
RECURSIVE Ask(_, _, _)
Ask(s, asked, task) ==
  IF asked = {} THEN s
  ELSE LET a == CHOOSE x \in asked : TRUE
           s1 == Put(s, {a[1]}, a[2])
           s2 == IF task = Nobody THEN s1
                 ELSE [s1 EXCEPT !.waits = @ \cup {[from |-> a[1], part |-> a[2][6], task |-> task]}]
       IN  Ask(s2, asked \ {a}, task)

\* Broker._apply: change the tables, and ask the neighbours for their part.
ApplyAll(s, b, m) ==
  LET task == m[6]
      Part(e) == IF task = Nobody THEN Nobody ELSE [task EXCEPT !.moved = e, !.by = b]
      out == Apply(s, b, m, Part)
  IN  Ask(out.s, out.sent, task)

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
   held |-> <<>>,    \* steps and operations that wait for the reader's decision
   read |-> "none",  \* how far the reader is here
   found |-> "",     \* what it has found here
   votes |-> {},     \* neighbours whose votes on it are outstanding
   got |-> <<>>,     \* what its clients receive in this step
   o |-> [n \in Nbr[b] |-> <<>>]]

Ready(s) == {i \in All : /\ i \notin s.started
                         /\ "order" \in Rules => Steps[i].after \subseteq s.handled}
First(set) == IF "order" \in Rules THEN CHOOSE i \in set : \A j \in set : i <= j
              ELSE CHOOSE i \in set : \A j \in set : i >= j

RECURSIVE CarryOn(_, _), Finished(_, _, _), Complete(_, _, _, _), Handle(_, _, _)

\* STx._settle: let it go, and say so to those behind.
Settle(s, b) == Put([s EXCEPT !.st = "settled"], Around(b) \ {Up(b)}, <<"settled">>)

\* STx.acknowledge: tx.outside counts the tasks that have begun here.
Acknowledge(s, b) ==
  IF \/ s.awaited # {} \/ s.acked \/ s.st \notin {"aborted", "finished"}
     \/ "outside" \in Rules /\ \E w \in s.waits : w.task.by = b
  THEN s
  ELSE LET s1 == [s EXCEPT !.acked = TRUE] IN
       IF b # Edge THEN Put(s1, {Up(b)}, <<"decided">>)
       ELSE IF s.st = "aborted" THEN s1
       ELSE Settle(s1, b)

Finish(s, b) ==
  IF s.st # "committed" \/ s.handled # All THEN s
  ELSE Acknowledge([s EXCEPT !.st = "finished"], b)

\* STx._complete: over the span, then on with what depends on it.
Complete(s, b, i, src) ==
  LET s1 == [s EXCEPT !.started = @ \cup {i}, !.handled = @ \cup {i}]
      s2 == Put(s1, Around(b) \ {src}, <<"complete", i>>)
  IN  CarryOn(s2, b)

\* Broker._finished, and STx.completed where it began.
Finished(s, b, task) ==
  IF task = Nobody \/ ("nested" \in Rules /\ \E w \in s.waits : w.task = task) THEN s
  ELSE IF Asker(b, task) # b THEN Put(s, {Asker(b, task)}, <<"done", task>>)
  ELSE IF task.by = b THEN Acknowledge(s, b)
  ELSE Complete(s, b, task.step, b)

\* Broker._done.
Done(s, b, src, part) ==
  LET mine == {w \in s.waits : w.from = src /\ w.part = part}
      s1 == [s EXCEPT !.waits = @ \ mine]
  IN  IF mine = {} \/ ("nested" \notin Rules /\ Asker(b, part) # b) THEN s1
      ELSE Finished(s1, b, (CHOOSE w \in mine : TRUE).task)

\* DTx.holds: who has voted for a reader keeps what it has read; what comes behind queues.
Waits(s) == s.read \in {"prepared", "yes"} \/ s.held # <<>>

\* A plain operation, an (un-)advertisement of a step, or what that has triggered.
Operate(s, b, m) == Finished(ApplyAll(s, b, m), b, m[6])

\* Broker._operate.
Receives(s, b, m) == IF Waits(s) THEN [s EXCEPT !.held = Append(@, m)] ELSE Operate(s, b, m)

\* Routing.apply_here: as a neighbour's operation, but those around do alike.
ApplyHere(s, b, i) ==
  LET step == Steps[i]
      src == HopTo(b, step.client)
      n == IF \/ src = b
              \/ \E a \in s.srt : HopTo(b, a[1]) # src
           THEN step.n ELSE 0
      out == ApplySub(s, b, Op(step.kind, step.client, n, step.drop, Told(i, b)))
      others == {f \in out.sent : f[1] \notin Span}
      to(h) == {f[2] : f \in {g \in out.sent : g[1] = h}}
      stored(h) == \E m \in to(h) : m[4] # 0
      gone(h) == (IF "drops follow" \in Rules THEN UNION {m[5] : m \in to(h)} ELSE {})
                 \cup (IF "own follows" \in Rules /\ step.n # 0 /\ ~stored(h) THEN {step.n} ELSE {})
      drops == {<<h, Op("usub", step.client, 0, gone(h), Told(i, b))>> :
                  h \in {x \in Around(b) \ {src} : gone(x) # {}}}
  IN  Ask(out.s, others \cup drops, Told(i, b))

\* STx._publish: to the broker's own clients, and to brokers outside the span.
Deliver(s, b, i, within) ==
  LET hops == {HopTo(b, e[1]) : e \in s.prt}
      mine == {e[1] : e \in {x \in s.prt : Home[x[1]] = b}}
      s1 == [s EXCEPT !.got = @ \o <<[step |-> i, to |-> mine]>>]
  IN  Put(s1, (hops \cap Nbr[b]) \ within, <<"pub", i>>)

\* STx.resume.
Resume(s, b, i) ==
  LET step == Steps[i] IN
  IF step.kind \in Subscribing
  THEN ApplyHere([s EXCEPT !.handled = @ \cup {i}], b, i)
  ELSE Operate(s, b, Op(step.kind, step.client, step.n, step.drop, Advertised(i)))

Handle(s, b, i) ==
  LET step == Steps[i]
      s1 == [s EXCEPT !.started = @ \cup {i}]
      s2 == IF step.kind \in Advertising /\ "complete" \notin Rules
            THEN [s1 EXCEPT !.handled = @ \cup {i}] ELSE s1
  IN  IF step.kind = "pub"
      THEN Deliver([s1 EXCEPT !.handled = @ \cup {i}], b, i, Span)
      ELSE IF step.kind \in Advertising /\ Home[step.client] # b THEN s2
      ELSE IF Waits(s2) THEN [s2 EXCEPT !.held = Append(@, <<"step", i>>)]
      ELSE Resume(s2, b, i)

\* STx.carry_on: the lowest first, as the plan's order has it.
CarryOn(s, b) ==
  IF s.st # "committed" THEN s
  ELSE IF Ready(s) = {} THEN Finish(s, b)
  ELSE CarryOn(Handle(s, b, First(Ready(s))), b)

\* STx.spread.
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

\* STx._plan, with the answer of this edge broker: STx._check_free asks who holds.
Plan(s, b, src, willing) ==
  LET ok == willing /\ ~Waits(s)
      s1 == Put([s EXCEPT !.st = "planned", !.unanswered = Edges,
                          !.refused = b \in Edges /\ ~ok],
                Around(b) \ {src}, <<"plan">>)
  IN  IF b \in Edges THEN Admitted(s1, b, b, b, ok) ELSE s1

(***************************************************************************)
(* The reader: every broker votes, and the one where it began decides.      *)
(***************************************************************************)
After(table, kinds) == Effect(table, Steps, kinds)

\* What a reader finds at b, of the whole transaction.
Finds(s, b) ==
  LET now == <<s.srt, s.prt>>
      before == <<Ads, Known(b, Subs, Ads)>>
      after == <<After(Ads, Advertising),
                 Known(b, After(Subs, Subscribing), After(Ads, Advertising))>>
  IN  CASE before = after -> "" [] now = before -> "before" [] now = after -> "after"
        [] OTHER -> "part"

\* STx.undecided: admitted here, or decided and perhaps not carried out everywhere.
Undecided(s, b) ==
  \/ s.st = "planned" /\ b \in Edges /\ ~s.refused
  \/ s.st = "committed"
  \/ s.st = "finished" /\ "settled" \in Rules

RECURSIVE Release(_, _, _)
\* Broker.release.
Release(s, b, queue) ==
  IF queue = <<>> THEN s
  ELSE LET m == Head(queue)
           s1 == IF m[1] = "op" THEN Operate(s, b, m) ELSE CarryOn(Resume(s, b, m[2]), b)
       IN  Release(s1, b, Tail(queue))

Decide(s, b, src, ok) ==
  LET s1 == Put([s EXCEPT !.read = IF ok THEN "admitted" ELSE "refused", !.held = <<>>,
                          !.votes = {}],
                Nbr[b] \ {src}, <<"decide reader", ok>>)
  IN  Release(s1, b, s.held)

\* A no at once, a yes when all behind have said so.
Answer(s, b, start) ==
  IF s.read = "prepared" /\ s.votes # {} THEN s
  ELSE LET yes == s.read = "prepared" IN
       IF b = start THEN Decide(s, b, b, yes)
       ELSE Put([s EXCEPT !.read = IF yes THEN "yes" ELSE "no"], {Hops[b][start]},
                <<"vote", start, yes>>)

Read(s, b, src, start) ==
  LET others == Nbr[b] \ {src}
      s1 == Put([s EXCEPT !.found = Finds(s, b), !.votes = others,
                          !.read = IF Undecided(s, b) THEN "no" ELSE "prepared"],
                others, <<"read", start>>)
  IN  Answer(s1, b, start)

Vote(s, b, src, start, yes) ==
  IF s.read # "prepared" THEN s
  ELSE Answer([s EXCEPT !.votes = @ \ {src}, !.read = IF yes THEN @ ELSE "no"], b, start)

Answers(b) == IF b \in Refusing THEN {TRUE, FALSE} ELSE {TRUE}

Take(s, b, src, m, ok) ==
  CASE m[1] = "plan"     -> Plan(s, b, src, ok)
    [] m[1] = "admitted" -> Admitted(s, b, src, m[2], m[3])
    [] m[1] = "decide"   -> Spread(s, b, m[2])
    [] m[1] = "complete" -> Complete(s, b, m[2], src)
    [] m[1] = "decided"  -> Acknowledge([s EXCEPT !.awaited = @ \ {src}], b)
    [] m[1] = "settled"  -> Settle(s, b)
    [] m[1] = "op"       -> Receives(s, b, m)
    [] m[1] = "done"     -> Done(s, b, src, m[2])
    [] m[1] = "pub"      -> Deliver(s, b, m[2], {src})
    [] m[1] = "read"     -> Read(s, b, src, m[2])
    [] m[1] = "vote"     -> Vote(s, b, src, m[2], m[3])
    [] m[1] = "decide reader" -> Decide(s, b, src, m[2])

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
  /\ reader = ""

Receive(c, b) ==
  /\ <<c, b>> \in Links /\ net[<<c, b>>] # <<>>
  /\ LET m == Head(net[<<c, b>>]) IN
     \E ok \in (IF m[1] = "plan" THEN Answers(b) ELSE {TRUE}) :
        Step(b, Take(brk[b], b, c, m, ok), [net EXCEPT ![<<c, b>>] = Tail(@)])
  /\ UNCHANGED <<plain, reader>>

Submit ==
  /\ brk[Edge].st = "none"
  /\ \E ok \in Answers(Edge) : Step(Edge, Plan(brk[Edge], Edge, Edge, ok), net)
  /\ UNCHANGED <<plain, reader>>

SayPlain ==
  /\ plain < Len(Plain)
  /\ plain' = plain + 1
  /\ LET p == Plain[plain + 1]
         b == Home[p.client]
     IN  Step(b, Receives(brk[b], b, Op(p.kind, p.client, p.n, p.drop, Nobody)), net)
  /\ UNCHANGED reader

BeginReader(b) ==
  /\ reader = "" /\ b \in Readers
  /\ reader' = b
  /\ Step(b, Read(brk[b], b, b, b), net)
  /\ UNCHANGED plain

\* Only without the rule "owner": a broker that has waited long enough aborts on its own.
GiveUp(b) ==
  /\ "owner" \notin Rules /\ brk[b].st = "planned"
  /\ Step(b, Spread(brk[b], b, FALSE), net)
  /\ UNCHANGED <<plain, reader>>

Next ==
  \/ Submit
  \/ SayPlain
  \/ \E l \in Links : Receive(l[1], l[2])
  \/ \E b \in Brokers : BeginReader(b) \/ GiveUp(b)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
IsCommitted(b) == brk[b].st \in {"committed", "finished", "settled"}

OneOutcome == \A b, c \in Span : ~(IsCommitted(b) /\ brk[c].st = "aborted")

\* No broker carries out what an edge broker has refused for its clients.
NobodyOverruled == (\E b \in Edges : brk[b].refused) => \A b \in Span : ~IsCommitted(b)

Quiet == \A l \in Links : net[l] = <<>>

Said == (IF IsCommitted(Edge) THEN Steps ELSE <<>>)
Live(table, kinds) == Effect(Effect(table, Said, kinds), SubSeq(Plain, 1, plain), kinds)

TablesAreRight ==
  LET ads == Live(Ads, Advertising)
      subs == Live(Subs, Subscribing)
  IN  \A b \in Brokers : brk[b].srt = ads /\ brk[b].prt = Known(b, subs, ads)

\* At rest the tables are what the live operations make them (proofs/oracle.py).
Converged == Quiet => TablesAreRight

\* When a broker settles, nothing of the transaction waits or is on its way, inside the span or
\* outside, and all tables are right as far as no plain operation is on its way.
Everywhere ==
  (\E b \in Span : brk[b].st = "settled") =>
    LET moving == UNION {{net[l][i] : i \in 1..Len(net[l])} : l \in Links}
        ops == {m \in moving : m[1] = "op"}
    IN  /\ \A b \in Span : brk[b].handled = All
        /\ \A b \in Brokers : brk[b].held = <<>>
        /\ \A m \in ops : m[6] = Nobody
        /\ ops = {} => TablesAreRight

\* No reader that all brokers have admitted has found the transaction at one broker and not at another.
NotInPart ==
  (\E b \in Brokers : brk[b].read = "admitted") =>
    LET found == {brk[b].found : b \in Brokers} \ {""}
    IN  found \in {{}, {"before"}, {"after"}}

\* At rest all is decided, done and let go.
AtRest ==
  Quiet =>
    /\ \A b \in Span : brk[b].st \in {"none", "aborted", "settled"}
    /\ \A b \in Span : brk[b].st # "none" => brk[b].acked
    /\ \A b \in Brokers : brk[b].waits = {} /\ brk[b].held = <<>>
    /\ \A b \in Brokers : brk[b].read \in {"none", "admitted", "refused"}

Count(q, x) == Cardinality({i \in 1..Len(q) : q[i] = x})

\* A publication goes once to each of its receivers and to no other client, and no other one goes anywhere.
Delivered ==
  /\ \A c \in Clients, i \in DOMAIN Expected : Count(inbox[c], i) <= 1
  /\ Quiet => \A i \in DOMAIN Expected : \A c \in Clients :
       Count(inbox[c], i) = IF IsCommitted(Edge) /\ c \in Expected[i] THEN 1 ELSE 0
=============================================================================
