---------------------------- MODULE STxAdvertise ---------------------------
(* P at B1 begins to advertise and publishes at once, in one transaction    *)
(* with Q at B2, which subscribes too late for it: those of X at B3 and Z   *)
(* at B4, outside the span, have to be there when the event comes.          *)
EXTENDS STx
MCNbr == Chain4
MCClients == {"P", "Q", "X", "Z"}
MCCoord == "Q"
MCReaders == DOMAIN Chain4
MCRefusing == {"B1"}
MCHome == [P |-> "B1", Q |-> "B2", X |-> "B3", Z |-> "B4"]
MCSubs == {<<"X", 1>>, <<"Z", 1>>}
MCAds == {}
MCSteps == << S("adv", "P", 1, {}, {}), S("pub", "P", 0, {}, {1}), S("sub", "Q", 1, {}, {2}) >>
MCPlain == << >>
MCExpected == [i \in {2} |-> {"X", "Z"}]
=============================================================================
