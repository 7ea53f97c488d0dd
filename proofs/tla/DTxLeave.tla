----------------------------- MODULE DTxLeave ------------------------------
(* A client at B2 has left, which nobody acknowledges.  That it is gone may *)
(* have to wait at B1, while two transactions publish, from either side,    *)
(* what it had subscribed to.                                               *)
EXTENDS DTx
MCNbr == Chain2
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B2", t2 |-> "B1"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B2", 0, On({"B1", "B2"}, {"subs"}, {})) >>,
          t2 |-> << Towards("p", "B1", 0, On({"B1", "B2"}, {"subs"}, {})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {"p"}
MCFrom == [p |-> "B2"]
MCTouch == [p |-> On({"B1", "B2"}, {}, {"subs"})]
MCCause == [p |-> "p"]
MCTakes == {"p"}
MCLeaves == {"p"}
ASSUME Spread
=============================================================================
