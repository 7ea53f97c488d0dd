-------------------------- MODULE DurableLinkLoss --------------------------
(* Each broker may crash and may lose its disk: the link begins new lives.  *)
EXTENDS DurableLink
MCSays == 2
MCCrashes == [b \in Brokers |-> 1]
MCLosses == [b \in Brokers |-> 1]
MCBreaks == 0
=============================================================================
