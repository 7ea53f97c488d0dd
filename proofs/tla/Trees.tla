------------------------------- MODULE Trees -------------------------------
(* Small trees of brokers, as neighbours of each, and paths in them.        *)
LOCAL INSTANCE FiniteSets

Chain2 == [b \in {"B1", "B2"} |-> {"B1", "B2"} \ {b}]
Chain3 == [b \in {"B1", "B2", "B3"} |-> IF b = "B2" THEN {"B1", "B3"} ELSE {"B2"}]
Chain4 == [b \in {"B1", "B2", "B3", "B4"} |->
             CASE b = "B1" -> {"B2"} [] b = "B2" -> {"B1", "B3"}
               [] b = "B3" -> {"B2", "B4"} [] b = "B4" -> {"B3"}]
Star4 == [b \in {"B1", "B2", "B3", "B4"} |-> IF b = "B1" THEN {"B2", "B3", "B4"} ELSE {"B1"}]

\* Brokers behind c, seen from its neighbour b.
RECURSIVE Side(_, _, _)
Side(nbr, b, c) == {c} \cup UNION {Side(nbr, c, d) : d \in nbr[c] \ {b}}

\* Where to go from b, to come to c.
HopTable(nbr) == [b \in DOMAIN nbr |-> [c \in DOMAIN nbr \ {b} |->
                    CHOOSE n \in nbr[b] : c \in Side(nbr, b, n)]]

\* The brokers from b to c, both included.
RECURSIVE Path(_, _, _)
Path(hops, b, c) == IF b = c THEN {b} ELSE {b} \cup Path(hops, hops[b][c], c)

Empty == [x \in {} |-> {}]
=============================================================================
