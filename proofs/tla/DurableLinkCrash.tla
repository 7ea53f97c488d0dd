-------------------------- MODULE DurableLinkCrash -------------------------
(* Each broker crashes once, at any moment, and a connection breaks.        *)
EXTENDS DurableLink
MCSays == 2
MCCrashes == [b \in Brokers |-> 1]
MCLosses == [b \in Brokers |-> 0]
MCBreaks == 1
=============================================================================
