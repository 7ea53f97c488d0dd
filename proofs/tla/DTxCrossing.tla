---------------------------- MODULE DTxCrossing ----------------------------
(* Two transactions at the two ends of a chain; their commits cross.        *)
EXTENDS DTx
MCNbr == [b \in Brokers |-> CASE b = "B1" -> {"B2"} [] b = "B2" -> {"B1", "B3"} [] b = "B3" -> {"B2"}]
MCEdge == [t \in Txs |-> IF t = "t1" THEN "B1" ELSE "B3"]
MCAge == [t \in Txs |-> IF t = "t1" THEN 1 ELSE 2]
MCOps == [t \in Txs |-> IF t = "t1"
            THEN << [b \in {"B1", "B2"} |-> [r |-> {"y"}, w |-> {"x"}]] >>
            ELSE << [b \in {"B2", "B3"} |-> [r |-> {}, w |-> {"z"}]] >>]
None == [p \in {} |-> {}]
=============================================================================
