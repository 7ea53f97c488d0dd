----------------------------- MODULE DTxPlain ------------------------------
(* Two transactions advertise, one of them everywhere, the other also reads *)
(* what that writes, while a plain subscription is on its way to meet them. *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B1", t2 |-> "B2"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B1", 0, On({"B1", "B2", "B3"}, {"subs"}, {"advs", "x"})) >>,
          t2 |-> << Op("op", "B2", 0, On({"B2", "B3"}, {"subs", "x"}, {"advs"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {"p"}
MCFrom == [p |-> "B3"]
MCTouch == [p |-> On({"B2", "B3"}, {"advs"}, {"subs"})]
MCCause == [p |-> "p"]
MCTakes == {}
MCLeaves == {}
ASSUME Spread
=============================================================================
