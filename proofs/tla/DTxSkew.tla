------------------------------ MODULE DTxSkew ------------------------------
(* Each of two transactions reads at its own end what the other one writes  *)
(* there.                                                                   *)
EXTENDS DTx
MCNbr == Chain3
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B1", t2 |-> "B3"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("op", "B1", 0, On({"B1"}, {"x"}, {})),
                    Op("op", "B1", 0, On({"B1", "B2"}, {}, {}) @@ On({"B3"}, {}, {"y"})) >>,
          t2 |-> << Op("op", "B3", 0, On({"B3"}, {"y"}, {})),
                    Op("op", "B3", 0, On({"B3", "B2"}, {}, {}) @@ On({"B1"}, {}, {"x"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
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
