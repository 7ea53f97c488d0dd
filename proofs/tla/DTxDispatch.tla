---------------------------- MODULE DTxDispatch ----------------------------
(* Dispatching.  E at B1 tells D at B2, which tells A at B3; A subscribes,  *)
(* D un-subscribes, and E publishes.  Any of them may fail.                 *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1"}
MCEdge == [t1 |-> "B1"]
MCAge == [t1 |-> 1]
MCOps == [t1 |-> << Op("tcm", "B1", 0, On({"B1", "B2"}, {"d"}, {})),
                    Op("tcm", "B2", 1, On({"B2", "B3"}, {"a"}, {})),
                    Op("op", "B3", 2, On({"B1", "B2", "B3"}, {"advs"}, {"x"})),
                    Op("op", "B2", 1, On({"B1", "B2"}, {"advs"}, {"x"})),
                    Op("op", "B1", 0, On({"B1", "B2", "B3"}, {"x"}, {})) >>]
MCDoomAt == [t1 |-> {"B1", "B2", "B3"}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {}
MCFrom == Empty
MCTouch == Empty
MCCause == Empty
MCTakes == {}
MCLeaves == {}
=============================================================================
