------------------------------ MODULE STxTrace ------------------------------
(* Is there a behaviour of STx in which brokers receive exactly these       *)
(* messages in exactly this order, and end with exactly these tables?       *)
(* proofs/solvers/static_traces.py writes the log, the tables and the       *)
(* constants from a run of the real engine. NotAccepted fails when there is *)
(* one.                                                                     *)
(*                                                                          *)
(* The log names no tasks. An answer names the entry of the log that it     *)
(* answers, and its task is that of the operation received there. The code  *)
(* also answers requests for which the specification does not wait.         *)
EXTENDS STx
CONSTANTS
  Log,     \* Seq of <<"submit">>, <<"plain">> and <<from, to, message>>
  Final    \* [Brokers -> [srt, prt]]
VARIABLES
  at,      \* which entry of the log is the next
  tasks    \* of the operations in the log

IsLike(m, e) ==
  CASE e[1] = "op"   -> SubSeq(m, 1, 5) = e
    [] e[1] = "done" -> m = <<"done", tasks[e[2]]>>
    [] OTHER         -> m = e

Taken(c, b, e) ==
  IF e[1] = "done" /\ tasks[e[2]] = Nobody THEN UNCHANGED <<vars, tasks>>
  ELSE /\ net[<<c, b>>] # <<>>
       /\ LET m == Head(net[<<c, b>>]) IN
          /\ IsLike(m, e)
          /\ tasks' = IF e[1] = "op" THEN [tasks EXCEPT ![at] = m[6]] ELSE tasks
       /\ Receive(c, b)

Shown(e) ==
  CASE e[1] = "submit" -> Submit /\ UNCHANGED tasks
    [] e[1] = "plain"  -> SayPlain /\ UNCHANGED tasks
    [] OTHER           -> Taken(e[1], e[2], e[3])

TraceInit == Init /\ at = 1 /\ tasks = [i \in 1..Len(Log) |-> Nobody]
TraceNext == at <= Len(Log) /\ Shown(Log[at]) /\ at' = at + 1
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, at, tasks>>

NotAccepted ==
  ~ /\ at > Len(Log) /\ Quiet /\ AtRest
    /\ \A b \in Brokers : brk[b].srt = Final[b].srt /\ brk[b].prt = Final[b].prt
=============================================================================
