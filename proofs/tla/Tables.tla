------------------------------ MODULE Tables -------------------------------
(***************************************************************************)
(* Shared routing tables of brokers on a tree, as in                        *)
(* overlay/tables/routing.py: where entries go, attraction, taking back.    *)
(*                                                                          *)
(* The event space is one point, so all filters overlap. An entry is a      *)
(* client and a number, and <<client, n>> came from HopTo(b, client). A     *)
(* state s of a broker has srt, prt and o, which is what this step sends.   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, Trees

CONSTANTS
  Nbr,       \* [Brokers -> SUBSET Brokers], a tree
  Clients,
  Home       \* [Clients -> Brokers]

Brokers == DOMAIN Nbr
Hops == HopTable(Nbr)
Links == {<<b, c>> \in Brokers \X Brokers : c \in Nbr[b]}
HopTo(b, client) == IF Home[client] = b THEN b ELSE Hops[b][Home[client]]

Subscribing == {"sub", "usub"}
Advertising == {"adv", "uadv"}

\* An operation on its way; n is 0 when nothing is stored.  A specification says what the tag is.
Op(kind, client, n, drop, tag) == <<"op", kind, client, n, drop, tag>>

Put(s, dests, m) == [s EXCEPT !.o = [n \in DOMAIN s.o |->
                       IF n \in dests THEN Append(s.o[n], m) ELSE s.o[n]]]

\* The links, when b has sent what its state says.
Sent(b, s, net) == [l \in Links |-> IF l[1] = b THEN net[l] \o s.o[l[2]] ELSE net[l]]

Reaches(b, srt, hop) == \E a \in srt : HopTo(b, a[1]) = hop
Towards(b, srt, e) == {n \in Nbr[b] \ {HopTo(b, e[1])} : Reaches(b, srt, n)}

\* What goes on to which neighbour is a set of <<neighbour, operation>>.
ApplySub(s, b, m) ==
  LET client == m[3]
      n == m[4]
      gone == {e \in s.prt : e[1] = client /\ e[2] \in m[5]}
      dropAt(h) == {e[2] : e \in {x \in gone : h \in Towards(b, s.srt, x)}}
      new == <<client, n>>
      storeAt == IF n = 0 THEN {} ELSE Towards(b, s.srt, new)
      sent == {h \in Nbr[b] : h \in storeAt \/ dropAt(h) # {}}
  IN  [s |-> [s EXCEPT !.prt = (@ \ gone) \cup (IF n = 0 THEN {} ELSE {new})],
       sent |-> {<<h, Op(m[2], client, IF h \in storeAt THEN n ELSE 0, dropAt(h), m[6])>> :
                   h \in sent}]

\* Forward, attract, take back.  Tag(e) is the tag of what sets entry e in motion.
ApplyAdv(s, b, m, Tag(_)) ==
  LET client == m[3]
      src == HopTo(b, client)
      srt == (s.srt \ {e \in s.srt : e[1] = client /\ e[2] \in m[5]})
             \cup (IF m[4] = 0 THEN {} ELSE {<<client, m[4]>>})
      moved == IF src = b THEN {} ELSE {e \in s.prt : HopTo(b, e[1]) # src}
      was == Reaches(b, s.srt, src)
      now == Reaches(b, srt, src)
      triggered == CASE now /\ ~was -> {<<src, Op("sub", e[1], e[2], {}, Tag(e))>> : e \in moved}
                     [] was /\ ~now -> {<<src, Op("usub", e[1], 0, {e[2]}, Tag(e))>> : e \in moved}
                     [] OTHER -> {}
      forward == {<<h, m>> : h \in Nbr[b] \ {src}}
  IN  [s |-> [s EXCEPT !.srt = srt], sent |-> forward \cup triggered]

Apply(s, b, m, Tag(_)) ==
  IF m[2] \in Subscribing THEN ApplySub(s, b, m) ELSE ApplyAdv(s, b, m, Tag)

(***************************************************************************)
(* What the tables should be (proofs/oracle.py).                            *)
(***************************************************************************)
Known(b, subs, ads) == {e \in subs : \/ Home[e[1]] = b
                                     \/ \E a \in ads : b \in Path(Hops, Home[e[1]], Home[a[1]])}

\* A table after some operations [kind, client, n, drop].
Effect(table, ops, kinds) ==
  LET mine == {i \in 1..Len(ops) : ops[i].kind \in kinds}
  IN  (table \cup {<<ops[i].client, ops[i].n>> : i \in {j \in mine : ops[j].n # 0}})
      \ UNION {{<<ops[i].client, k>> : k \in ops[i].drop} : i \in mine}
=============================================================================
