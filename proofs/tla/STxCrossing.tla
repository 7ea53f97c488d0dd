---------------------------- MODULE STxCrossing ----------------------------
(* X and Z at the ends of a chain are told by C in the middle; meanwhile Y, *)
(* behind X, advertises, so that subscriptions are attracted over the very  *)
(* links of the span.                                                       *)
EXTENDS STx
MCNbr == Chain3
MCClients == {"X", "C", "Z", "Y"}
MCCoord == "C"
MCReaders == {}
MCRefusing == {}
MCExpected == Empty
MCHome == [X |-> "B1", C |-> "B2", Z |-> "B3", Y |-> "B1"]
MCSubs == {<<"Z", 1>>, <<"X", 1>>}
MCAds == {}
MCSteps == << S("sub", "Z", 2, {1}, {}), S("usub", "X", 0, {1}, {}) >>
MCPlain == << S("adv", "Y", 1, {}, {}) >>
=============================================================================
