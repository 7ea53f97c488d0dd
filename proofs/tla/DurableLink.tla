---------------------------- MODULE DurableLink ----------------------------
(***************************************************************************)
(* Two brokers that log their inputs, and the link between them: what one   *)
(* says arrives once and in order, whatever crashes and whenever.  One step *)
(* is one frame, one step of a log, or one hello, as in                     *)
(* overlay/wire/link.py, overlay/node/node.py, overlay/node/journal.py,     *)
(* overlay/node/recovery.py and overlay/hosts/host.py; proofs/README.md     *)
(* maps the actions to functions.                                           *)
(*                                                                          *)
(* A's client says 1, 2, 3, ...  For each, A sends B a message.  An input   *)
(* is staged, written, synced and applied.  A crash loses what is staged,   *)
(* and of what is written and not synced any suffix.  A connection breaks   *)
(* with all that is on it.  A broker that loses its disk begins a new life. *)
(*                                                                          *)
(* Left out: the client's link (it resumes as this one does), messages from *)
(* B to A, windows, snapshots, a connection whose end one side notices late *)
(* (a dialling end waits for the answer to its hello, an accepting one      *)
(* drops the old connection when a new one comes).                          *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Says,      \* how many messages the client says
  Crashes,   \* how often each broker crashes: [{"A", "B"} -> Nat]
  Losses,    \* how often each broker loses its disk
  Breaks,    \* how often a connection breaks
  Rules      \* AllRules, or fewer in a negative control

AllRules == {
  "sync",     \* an input is applied when it is synced, not when it is written
  "count",    \* a message counts as received when it is applied, not when it arrives
  "lives",    \* the beginning of a life of a link is an input
  "outbox",   \* a replay fills the outbox
  "once",     \* a replay applies each input once
  "wait",     \* a hello waits until nothing of its peer is on its way
  "prefix",   \* of what was not synced a prefix survives, never what is behind a gap
  "kept",     \* an outbox keeps what is not acknowledged
  "resend" }  \* after a hello what the peer has not received is sent again

VARIABLES node, disk, wire, client, left, failed
vars == <<node, disk, wire, client, left, failed>>

Brokers == {"A", "B"}
Other(b) == IF b = "A" THEN "B" ELSE "A"
None == <<0, 0>>

SayIn(m) == [t |-> "say", m |-> m, inc |-> None, peer |-> None, reset |-> FALSE]
TookIn(m, inc) == [t |-> "took", m |-> m, inc |-> inc, peer |-> None, reset |-> FALSE]
OpenIn(inc, peer, reset) == [t |-> "open", m |-> 0, inc |-> inc, peer |-> peer, reset |-> reset]

Msg(m) == [k |-> "msg", n |-> m, inc |-> None, peer |-> None]
Ack(n) == [k |-> "ack", n |-> n, inc |-> None, peer |-> None]
Hello(s) == [k |-> "hello", n |-> s.recv, inc |-> s.inc, peer |-> s.peer]

\* A node that knows nothing: an end of the link, and what the broker has done.
Fresh(birth) ==
  [up |-> TRUE,
   inc |-> <<birth, 0>>,   \* this end's life, and that of the other end
   peer |-> None,
   recv |-> 0,             \* how many messages of this life it has received
   acked |-> 0,            \* how many of its own the peer has acknowledged
   out |-> <<>>,           \* its own messages that are not acknowledged
   got |-> <<>>,           \* what the core has received
   said |-> 0,             \* what the client has said, as far as the core has it
   applied |-> 0,          \* how many inputs of the log are applied
   staged |-> <<>>,        \* inputs that are not written yet
   sent |-> 0,             \* how many messages of out are in flight
   told |-> 0,             \* how many messages it has acknowledged
   early |-> 0,            \* without "count": how many have arrived
   conn |-> "no",          \* "no", "calling", "yes"
   hello |-> <<>>]         \* a hello that waits for an answer, or to be looked at

(***************************************************************************)
(* Link: what a hello means.                                                *)
(***************************************************************************)
\* Link.resumes.
Resumes(s, h) == h.inc = s.peer /\ (h.peer = s.inc \/ (s.recv = 0 /\ s.acked = 0))

\* Link.next_incarnation.
NextInc(s) == IF s.peer # None /\ s.conn # "calling" THEN <<s.inc[1], s.inc[2] + 1>> ELSE s.inc

\* Link.begin.
Begin(s, inc, peer, reset) ==
  LET s1 == IF reset THEN [s EXCEPT !.recv = 0, !.acked = 0, !.out = <<>>, !.sent = 0,
                                    !.told = 0, !.early = 0]
            ELSE s
  IN  [s1 EXCEPT !.inc = inc, !.peer = peer]

\* Link._resume: how many the peer has received, and whether that can be.
Received(s, h) == IF h.peer = s.inc THEN h.n ELSE 0
Possible(s, n) == s.acked <= n /\ n <= s.acked + Len(s.out)
Resume(s, n) ==
  [s EXCEPT !.out = SubSeq(@, n - s.acked + 1, Len(@)),
            !.acked = n,
            !.sent = IF "resend" \in Rules THEN 0 ELSE Len(s.out) - (n - s.acked),
            !.told = s.recv, !.early = s.recv]

(***************************************************************************)
(* Node: what an input does.                                                *)
(***************************************************************************)
\* Node.apply, but for what the host does then.
Applied(s, b, input) ==
  CASE input.t = "say" ->
         [s EXCEPT !.said = input.m,
                   \* Without a peer the link has queued it as well.
                   !.out = Append(@, input.m)]
    [] input.t = "took" ->
         IF input.inc # s.inc THEN s
         ELSE [s EXCEPT !.recv = @ + 1, !.got = Append(@, input.m)]
    [] input.t = "open" -> Begin(s, input.inc, input.peer, input.reset)

RECURSIVE Replay(_, _, _)
\* recovery.recover.
Replay(s, b, log) ==
  IF log = <<>> THEN s ELSE Replay(Applied(s, b, Head(log)), b, Tail(log))

Recovered(b, d) ==
  LET twice == IF "once" \in Rules \/ d.log = <<>> THEN d.log ELSE Append(d.log, d.log[Len(d.log)])
      s == Replay(Fresh(d.birth), b, twice)
      s1 == [s EXCEPT !.applied = Len(d.log), !.told = s.recv, !.early = s.recv]
  IN  IF "outbox" \in Rules THEN s1
      ELSE [s1 EXCEPT !.out = <<>>, !.acked = @ + Len(s.out)]

(***************************************************************************)
(* Steps.                                                                   *)
(***************************************************************************)
Set(b, s) == node' = [node EXCEPT ![b] = s]
Put(b, frame) == wire' = [wire EXCEPT ![b] = Append(@, frame)]

Init ==
  /\ disk = [b \in Brokers |-> [log |-> <<>>, synced |-> 0, birth |-> 1]]
  /\ node = [b \in Brokers |-> Fresh(1)]
  /\ wire = [b \in Brokers |-> <<>>]   \* what b has sent on this connection
  /\ client = [next |-> 1, acked |-> 0, base |-> 0]   \* base: said in former lives of A
  /\ left = [crash |-> Crashes, lose |-> Losses, break |-> Breaks]
  /\ failed = FALSE

\* The client says the next.
Say ==
  LET s == node["A"] IN
  /\ s.up /\ client.next <= Says
  /\ Set("A", [s EXCEPT !.staged = Append(@, SayIn(client.next))])
  /\ client' = [client EXCEPT !.next = @ + 1]
  /\ UNCHANGED <<disk, wire, left, failed>>

\* The log: Journal.push, and the two halves of SegmentWriter.append.
Write(b) ==
  LET s == node[b] IN
  /\ s.up /\ s.staged # <<>> /\ disk[b].synced = Len(disk[b].log)
  /\ Set(b, [s EXCEPT !.staged = <<>>])
  /\ disk' = [disk EXCEPT ![b].log = @ \o s.staged]
  /\ UNCHANGED <<wire, client, left, failed>>

Sync(b) ==
  /\ node[b].up /\ disk[b].synced < Len(disk[b].log)
  /\ disk' = [disk EXCEPT ![b].synced = Len(disk[b].log)]
  /\ UNCHANGED <<node, wire, client, left, failed>>

Committed(b) == IF "sync" \in Rules THEN disk[b].synced ELSE Len(disk[b].log)

\* Host._apply_next.  The client's message is acknowledged.
Apply(b) ==
  LET s == node[b]
      input == disk[b].log[s.applied + 1]
  IN
  /\ s.up /\ s.applied < Committed(b)
  /\ Set(b, [Applied(s, b, input) EXCEPT !.applied = @ + 1])
  /\ client' = IF input.t = "say" THEN [client EXCEPT !.acked = input.m] ELSE client
  /\ UNCHANGED <<disk, wire, left, failed>>

\* Link.take: a message, or an acknowledgement.
Transmit(b) ==
  LET s == node[b] IN
  /\ s.up /\ s.conn = "yes" /\ s.sent < Len(s.out)
  /\ Put(b, Msg(s.out[s.sent + 1]))
  /\ Set(b, IF "kept" \in Rules THEN [s EXCEPT !.sent = @ + 1]
            ELSE [s EXCEPT !.out = Tail(@), !.acked = @ + 1])
  /\ UNCHANGED <<disk, client, left, failed>>

Acknowledge(b) ==
  LET s == node[b]
      n == IF "count" \in Rules THEN s.recv ELSE s.early
  IN
  /\ s.up /\ s.conn = "yes" /\ s.told < n
  /\ Put(b, Ack(n))
  /\ Set(b, [s EXCEPT !.told = n])
  /\ UNCHANGED <<disk, client, left, failed>>

\* Host.accept and Host.answered.
Greeted(s, f) == [s EXCEPT !.hello = <<f>>]

\* Link.stage: the message is on its way to the core.
Staged(s, f) == [s EXCEPT !.staged = Append(@, TookIn(f.n, s.inc)), !.early = @ + 1]

\* Link._acknowledge.
Trimmed(s, f) ==
  [s EXCEPT !.out = SubSeq(@, f.n - s.acked + 1, Len(@)),
            !.sent = @ - (f.n - s.acked), !.acked = f.n]

Take(s, f) ==
  CASE f.k = "hello" -> Greeted(s, f)
    [] f.k = "msg"   -> Staged(s, f)
    [] f.k = "ack"   -> Trimmed(s, f)

\* Host.arrived: the next frame of the other broker.
Arrive(b) ==
  LET o == Other(b)
      s == node[b]
      f == Head(wire[o])
  IN
  /\ s.up /\ wire[o] # <<>>
  /\ f.k = "hello" => s.hello = <<>>
  /\ f.k # "hello" => s.conn = "yes"
  /\ wire' = [wire EXCEPT ![o] = Tail(@)]
  /\ IF f.k = "ack" /\ ~Possible(s, f.n)
     THEN failed' = TRUE /\ UNCHANGED node
     ELSE Set(b, Take(s, f)) /\ UNCHANGED failed
  /\ UNCHANGED <<disk, client, left>>

\* Nothing of the other broker is on its way to the node.
Idle(b) == node[b].staged = <<>> /\ node[b].applied = Len(disk[b].log)
Settled(b) == "wait" \in Rules => Idle(b)

\* Host.call: A dials, and says hello.
Call ==
  LET s == node["A"] IN
  /\ s.up /\ node["B"].up /\ s.conn = "no" /\ node["B"].conn = "no"
  /\ Settled("A")
  /\ Set("A", [s EXCEPT !.conn = "calling"])
  /\ Put("A", Hello(s))
  /\ UNCHANGED <<disk, client, left, failed>>

\* Host._open: a hello is looked at.  A new life is an input first, and the hello waits for it.
Open(b) ==
  LET s == node[b]
      h == s.hello[1]
      inc == NextInc(s)
      open == OpenIn(inc, h.inc, s.peer # None)
      n == Received(s, h)
      s1 == [Resume(s, n) EXCEPT !.conn = "yes", !.hello = <<>>]
  IN
  /\ s.up /\ s.hello # <<>> /\ Settled(b)
  /\ IF ~Resumes(s, h)
     THEN /\ Idle(b)
          /\ IF "lives" \in Rules
             THEN Set(b, [s EXCEPT !.staged = Append(@, open)])
             ELSE Set(b, Begin(s, inc, h.inc, s.peer # None))
          /\ UNCHANGED <<wire, failed>>
     ELSE IF ~Possible(s, n)
     THEN failed' = TRUE /\ UNCHANGED <<node, wire>>
     ELSE /\ Set(b, s1)
          /\ IF s.conn = "calling" THEN UNCHANGED wire ELSE Put(b, Hello(s1))
          /\ UNCHANGED failed
  /\ UNCHANGED <<disk, client, left>>

Cut(s) == [s EXCEPT !.conn = "no", !.hello = <<>>, !.sent = 0]

\* The connection breaks, and both ends notice.
Break ==
  /\ left.break > 0
  /\ node["A"].conn # "no"
  /\ left' = [left EXCEPT !.break = @ - 1]
  /\ node' = [b \in Brokers |-> Cut(node[b])]
  /\ wire' = [b \in Brokers |-> <<>>]
  /\ UNCHANGED <<disk, client, failed>>

\* What survives of a log: all that is synced, and of the rest a prefix.
Survivors(d) ==
  LET written == Len(d.log)
      prefixes == {SubSeq(d.log, 1, n) : n \in d.synced..written}
      gaps == {SubSeq(d.log, 1, n) \o SubSeq(d.log, n + 2, written) : n \in d.synced..(written - 1)}
  IN  IF "prefix" \in Rules THEN prefixes ELSE prefixes \cup gaps

LastSaid(log) ==
  LET said == {log[i].m : i \in {j \in 1..Len(log) : log[j].t = "say"}}
  IN  IF said = {} THEN 0 ELSE CHOOSE m \in said : \A n \in said : n <= m

\* A broker dies and comes back, while the other one sees a connection that breaks.  What the client
\* has not been told is there it says again.
Crash(b) ==
  /\ left.crash[b] > 0
  /\ left' = [left EXCEPT !.crash[b] = @ - 1]
  /\ \E log \in Survivors(disk[b]) :
       LET d == [disk[b] EXCEPT !.log = log, !.synced = Len(log)]
           known == LastSaid(log)
           said == IF known > client.base THEN known ELSE client.base
       IN
       /\ disk' = [disk EXCEPT ![b] = d]
       /\ node' = [node EXCEPT ![b] = Recovered(b, d), ![Other(b)] = Cut(@)]
       /\ client' = IF b = "A"
                    THEN [client EXCEPT !.next = said + 1,
                                        !.acked = IF known > @ THEN known ELSE @]
                    ELSE client
  /\ wire' = [c \in Brokers |-> <<>>]
  /\ UNCHANGED failed

\* A broker loses its disk: it begins anew, and its client goes on with what it has not said yet.
Lose(b) ==
  /\ left.lose[b] > 0
  /\ left' = [left EXCEPT !.lose[b] = @ - 1]
  /\ LET d == [log |-> <<>>, synced |-> 0, birth |-> disk[b].birth + 1]
     IN  /\ disk' = [disk EXCEPT ![b] = d]
         /\ node' = [node EXCEPT ![b] = Recovered(b, d), ![Other(b)] = Cut(@)]
  /\ client' = IF b = "A" THEN [client EXCEPT !.base = client.next - 1] ELSE client
  /\ wire' = [c \in Brokers |-> <<>>]
  /\ UNCHANGED failed

Next ==
  \/ Say \/ Call \/ Break
  \/ \E b \in Brokers :
       \/ Write(b) \/ Sync(b) \/ Apply(b)
       \/ Transmit(b) \/ Acknowledge(b) \/ Arrive(b) \/ Open(b)
       \/ Crash(b) \/ Lose(b)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                          *)
(***************************************************************************)
HasLost(b) == left.lose[b] < Losses[b]
NothingLost == \A b \in Brokers : ~HasLost(b)

\* B has what the client has said, in order, each once; after a lost disk a part of it.
OnceInOrder ==
  LET got == node["B"].got IN
  /\ \A i \in 1..Len(got), j \in 1..Len(got) : i < j => got[i] < got[j]
  /\ NothingLost => \A i \in 1..Len(got) : got[i] = i

\* What is acknowledged is on the disk of whoever has acknowledged it.
AcknowledgedKept ==
  /\ ~HasLost("A") => client.acked <= LastSaid(SubSeq(disk["A"].log, 1, disk["A"].synced))
  /\ node["A"].peer = node["B"].inc =>
       node["A"].acked <= Replay(Fresh(disk["B"].birth), "B",
                                 SubSeq(disk["B"].log, 1, disk["B"].synced)).recv

\* The ends of a link agree on what has been received: nobody claims what cannot be.
CountsAgree == ~failed

\* When nothing is under way any more, B has everything that the client was told is there.
Quiet ==
  /\ \A b \in Brokers :
       /\ wire[b] = <<>> /\ node[b].conn = "yes" /\ node[b].staged = <<>> /\ node[b].hello = <<>>
       /\ node[b].applied = Len(disk[b].log)
  /\ node["A"].sent = Len(node["A"].out)
  /\ node["B"].told >= node["B"].recv

Complete ==
  (Quiet /\ NothingLost) => /\ Len(node["B"].got) >= client.acked
                            /\ node["A"].out = <<>>
=============================================================================
