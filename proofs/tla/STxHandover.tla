---------------------------- MODULE STxHandover ----------------------------
(* Dispatching: E at B1 has its events given from D at B2 to A at B3, and   *)
(* publishes the first of the new ones in the same transaction.             *)
EXTENDS STx
MCNbr == Star4
MCClients == {"E", "D", "A", "Y"}
MCCoord == "E"
MCReaders == {}
MCRefusing == {"B2"}
MCHome == [E |-> "B1", D |-> "B2", A |-> "B3", Y |-> "B4"]
MCSubs == {<<"D", 1>>}
MCAds == {<<"E", 1>>}
MCSteps == << S("sub", "A", 1, {}, {}), S("usub", "D", 0, {1}, {1}), S("pub", "E", 0, {}, {1, 2}) >>
MCPlain == << S("adv", "Y", 1, {}, {}), S("uadv", "Y", 0, {1}, {}) >>
MCExpected == [i \in {3} |-> {"A"}]
=============================================================================
