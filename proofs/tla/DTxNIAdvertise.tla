-------------------------- MODULE DTxNIAdvertise ---------------------------
(* P at B1 takes its advertisement back and gives it again, in one          *)
(* transaction: what Z at B3 has subscribed to is sent back and attracted.  *)
(* Y at B1 advertises and un-advertises in the same moment, so that it      *)
(* stays attracted, or not, for another reason.                             *)
EXTENDS DTxNI
MCNbr == Chain3
MCClients == {"P", "Y", "Z"}
MCCoord == "P"
MCHome == [P |-> "B1", Y |-> "B1", Z |-> "B3"]
MCSubs == {<<"Z", 1>>}
MCAds == {<<"P", 1>>}
MCInTx == [P |-> << W("uadv", 2), W("adv", 3) >>]
MCPlain == [Y |-> << W("adv", 1), W("uadv", 2) >>]
MCHolding == {}
=============================================================================
