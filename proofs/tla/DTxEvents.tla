----------------------------- MODULE DTxEvents -----------------------------
(* A handover commits while a client at the other end keeps on publishing.  *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1"}
MCEdge == [t1 |-> "B1"]
MCAge == [t1 |-> 1]
MCOps == [t1 |-> << Op("op", "B1", 0, On({"B1", "B2", "B3"}, {}, {"x"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {1, 2}
MCPlains == {}
MCFrom == [p \in {1, 2} |-> "B3"]
MCReach == [p \in {1, 2} |-> {"B1", "B2", "B3"}]
MCTouch == Empty
=============================================================================
