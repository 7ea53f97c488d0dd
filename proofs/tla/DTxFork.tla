------------------------------ MODULE DTxFork ------------------------------
(* In a star, somebody at B3 subscribes and somebody at B4 un-subscribes,   *)
(* both plainly; a client at B2 publishes for both in one transaction.      *)
EXTENDS DTx
MCNbr == Star4
MCTxs == {"t1"}
MCEdge == [t1 |-> "B2"]
MCAge == [t1 |-> 1]
MCOps == [t1 |-> << Towards("p", "B2", 0, On({"B1", "B2", "B3"}, {"x"}, {})),
                    Towards("q", "B2", 0, On({"B1", "B2", "B4"}, {"y"}, {})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {"p", "q"}
MCFrom == [p |-> "B3", q |-> "B4"]
MCTouch == [p |-> On({"B1", "B2", "B3"}, {}, {"x"}), q |-> On({"B1", "B2", "B4"}, {}, {"y"})]
MCCause == [p |-> "p", q |-> "q"]
MCTakes == {"q"}
MCLeaves == {}
ASSUME Spread
=============================================================================
