------------------------------ MODULE DTxTrace ------------------------------
(* Is there a behaviour of DTx in which brokers receive exactly these       *)
(* messages in exactly this order? proofs/solvers/dynamic_traces.py writes  *)
(* the log and the constants from a run of the real engine. TLC searches    *)
(* for a state in which the whole log was received and all is over:         *)
(* NotAccepted fails when there is one.                                     *)
EXTENDS DTx
CONSTANT Log   \* Seq of <<"begin", t>>, <<"say", p>>, <<"emit", p>> and of <<from, to, message>>
VARIABLE at    \* which entry of the log is the next

Shown(e) ==
  IF e[1] = "begin" THEN Begin(e[2])
  ELSE IF e[1] = "say" THEN Say(e[2])
  ELSE IF e[1] = "emit" THEN Emit(e[2])
  ELSE /\ net[<<e[1], e[2]>>] # <<>>
       /\ Head(net[<<e[1], e[2]>>]) = e[3]
       /\ Receive(e[1], e[2])

\* What a trace does not show: the moment at which a broker goes on with what its clients say.
Hidden ==
  \/ \E t \in Txs : Commit(t)
  \/ \E t \in Txs : \E i \in Numbers(t) : Issue(t, i)
  \/ \E t \in Txs : \E b \in Brokers : Doom(b, t)
  \/ \E t \in Txs : \E b \in Brokers : \E k \in Numbers(t) : Finish(b, t, k)

TraceNext ==
  \/ Busy /\ OfItself /\ UNCHANGED at
  \/ ~Busy /\ Hidden /\ UNCHANGED at
  \/ ~Busy /\ at <= Len(Log) /\ Shown(Log[at]) /\ at' = at + 1

TraceSpec == Init /\ at = 1 /\ [][TraceNext]_<<vars, at>>

NotAccepted == ~(at > Len(Log) /\ Over)
=============================================================================
