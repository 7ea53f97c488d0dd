---------------------------- MODULE STxOutside -----------------------------
(* X at B2 takes over what C at B1 gets.  Who publishes it is at B4, so     *)
(* brokers outside the span have to be told, and a reader may begin         *)
(* anywhere meanwhile.                                                      *)
EXTENDS STx
MCNbr == Chain4
MCClients == {"C", "X", "P"}
MCCoord == "C"
MCReaders == DOMAIN Chain4
MCRefusing == {}
MCExpected == Empty
MCHome == [C |-> "B1", X |-> "B2", P |-> "B4"]
MCSubs == {<<"C", 1>>}
MCAds == {<<"P", 1>>}
MCSteps == << S("sub", "X", 1, {}, {}), S("usub", "C", 0, {1}, {1}) >>
MCPlain == << >>
=============================================================================
