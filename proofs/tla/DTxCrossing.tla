---------------------------- MODULE DTxCrossing ----------------------------
(* Two transactions at the two ends of a chain, one of which may fail on    *)
(* the way; their commits cross.                                            *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B1", t2 |-> "B3"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B1", 0, On({"B1", "B2"}, {"y"}, {"x"})) >>,
          t2 |-> << Op("op", "B3", 0, On({"B2", "B3"}, {}, {"z"})) >>]
MCDoomAt == [t1 |-> {"B1", "B3"}, t2 |-> {}]
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
