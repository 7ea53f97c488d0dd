--------------------------- MODULE DTxNICrossing ---------------------------
(* A at B2 subscribes; D at B1 un-subscribes and subscribes anew.  P at B3  *)
(* has advertised, and Y at B1 does meanwhile, and takes it back: what the  *)
(* transaction does, and what undoes it, goes both ways, or not.            *)
EXTENDS DTxNI
MCNbr == Chain3
MCClients == {"A", "D", "P", "Y"}
MCCoord == "A"
MCHome == [A |-> "B2", D |-> "B1", P |-> "B3", Y |-> "B1"]
MCSubs == {<<"D", 1>>}
MCAds == {<<"P", 1>>}
MCInTx == [A |-> << W("sub", 1) >>, D |-> << W("usub", 2), W("sub", 3) >>]
MCPlain == [Y |-> << W("adv", 1), W("uadv", 2) >>]
MCHolding == {}
=============================================================================
