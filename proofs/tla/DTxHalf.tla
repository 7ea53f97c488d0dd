------------------------------ MODULE DTxHalf ------------------------------
(* A plain operation comes from B3 and may have to wait at B2, for t2;      *)
(* meanwhile t1 reads on both sides of that what it writes.  Not Spread:    *)
(* t1 goes on to B2 from neither, so only B3 can tell.                      *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B3", t2 |-> "B2"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B3", 0, On({"B1", "B3"}, {"advs"}, {}) @@ On({"B2"}, {}, {})) >>,
          t2 |-> << Towards("p", "B2", 0, On({"B2", "B3"}, {"advs"}, {"subs"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {"p"}
MCFrom == [p |-> "B3"]
MCTouch == [p |-> On({"B1", "B2", "B3"}, {"subs"}, {"advs"})]
MCCause == [p |-> "p"]
MCTakes == {}
MCLeaves == {}
=============================================================================
