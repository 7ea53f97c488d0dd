---------------------------- MODULE STxTakenBack ---------------------------
(* As STxCrossing, but Y takes its advertisement back while it is still on  *)
(* its way: B1 has stored on behalf of B2 what B2 never sent, and only B2   *)
(* can tell it so.                                                          *)
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
MCPlain == << S("adv", "Y", 1, {}, {}), S("uadv", "Y", 0, {1}, {}) >>
=============================================================================
