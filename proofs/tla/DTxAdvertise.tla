--------------------------- MODULE DTxAdvertise ----------------------------
(* P at B1 of a star begins to advertise and publishes at once; subscriptions *)
(* that wait at B3 and B4 are attracted, and Q at B2 takes part as well.    *)
EXTENDS DTx
MCNbr == Star4
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B2", t2 |-> "B4"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Op("adv", "B2", 0, On({"B1", "B2", "B3", "B4"}, {"subs"}, {"advs"})),
                    Op("op", "B3", 1, On({"B3"}, {}, {}) @@ On({"B1", "B2"}, {"advs"}, {"subs"})),
                    Op("op", "B4", 1, On({"B4"}, {}, {}) @@ On({"B1", "B2"}, {"advs"}, {"subs"})),
                    Op("op", "B2", 0, On({"B1", "B2", "B3", "B4"}, {"subs"}, {})) >>,
          t2 |-> << Op("op", "B4", 0, On({"B4"}, {"advs"}, {"subs"})) >>]
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
