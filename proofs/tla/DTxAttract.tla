---------------------------- MODULE DTxAttract -----------------------------
(* A client at B1 advertises, plainly, and a subscription that has waited   *)
(* at B2 follows: both are one.  That client publishes, in t1; t2           *)
(* advertises what the same subscription waits for.  Not Spread: at B1 t2   *)
(* does not look for the advertisement, only for what follows it.           *)
EXTENDS DTx
MCNbr == Chain2
MCTxs == {"t1", "t2"}
MCEdge == [t1 |-> "B1", t2 |-> "B2"]
MCAge == [t1 |-> 1, t2 |-> 2]
MCOps == [t1 |-> << Towards("s", "B1", 0, On({"B1"}, {"a", "subs"}, {})
                                          @@ On({"B2"}, {"subs"}, {})) >>,
          t2 |-> << Op("op", "B2", 0, On({"B1"}, {"subs"}, {"b"})
                                      @@ On({"B2"}, {"a", "subs"}, {"b"})) >>]
MCDoomAt == [t \in MCTxs |-> {}]
MCPubs == {}
MCHome == Empty
MCReach == Empty
MCPlains == {"a", "s"}
MCFrom == [a |-> "B1", s |-> "B2"]
MCTouch == [a |-> On({"B1"}, {"subs"}, {"a"}) @@ On({"B2"}, {"b", "subs"}, {"a"}),
            s |-> On({"B1"}, {"a", "b"}, {"subs"})]
MCCause == [a |-> "a", s |-> "a"]
MCTakes == {}
MCLeaves == {}
=============================================================================
