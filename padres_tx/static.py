"""Operations as data, for `tx.do` and for what the receivers of a tcm do in a static transaction.

    from padres_tx import static

    tx.tcm({"class": "p1", "x": "x1"}, ops={
        "D": [static.tcm({"class": "assign", "to": "A1"}, ops={"A1": [static.sub(X1)]}),
              static.usub(X1)],
    })

In a static transaction (s-tx) the coordinator says what every client does, so operations of others
are written as data. In a dynamic one the same data can be passed to `tx.do`; `ops` and `after` are
refused there. The order that follows from such a description is explained in
`padres_tx.client.static_plan`.
"""

from padres_tx.client.operations import Op, Ops, adv, pub, sub, tcm, uadv, usub

__all__ = ["Op", "Ops", "adv", "pub", "sub", "tcm", "uadv", "usub"]
