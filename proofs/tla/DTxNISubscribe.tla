-------------------------- MODULE DTxNISubscribe ---------------------------
(* A at B2 subscribes and un-subscribes; so does D at B1, but it has a      *)
(* subscription already, and a plain word to say, too.  P at B3 has         *)
(* advertised, and B2 holds back what comes to it for a while.              *)
EXTENDS DTxNI
MCNbr == Chain3
MCClients == {"A", "D", "P"}
MCCoord == "A"
MCHome == [A |-> "B2", D |-> "B1", P |-> "B3"]
MCSubs == {<<"D", 1>>}
MCAds == {<<"P", 1>>}
MCInTx == [A |-> << W("sub", 1), W("usub", 2) >>, D |-> << W("sub", 2), W("usub", 3) >>]
MCPlain == [D |-> << W("usub", 4) >>]
MCHolding == {"B2"}
=============================================================================
