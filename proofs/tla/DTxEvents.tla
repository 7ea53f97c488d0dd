----------------------------- MODULE DTxEvents -----------------------------
(* Two handovers commit, from two sides, while clients at both ends keep on *)
(* publishing.                                                              *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B1", t2 |-> "B3"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B1", 0, On({"B1", "B2", "B3"}, {}, {"x"})) >>,
          t2 |-> << Op("op", "B3", 0, On({"B2", "B3"}, {}, {"y"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {1, 2, 3}
MCHome == [p \in {1, 2, 3} |-> IF p = 3 THEN "B1" ELSE "B3"]
MCReach == [p \in {1, 2, 3} |-> {"B1", "B2", "B3"}]
MCPlains == {}
MCFrom == Empty
MCTouch == Empty
MCCause == Empty
MCTakes == {}
MCLeaves == {}
=============================================================================
