"""Short words for the operations of transactions, and for trees, that tests write down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from overlay.filters import Filter, Value
from padres_tx.client_messages import Step


def box(**attributes: Any) -> Filter:
    return Filter(**attributes)


def sub(client: str, filter: Filter) -> Step:
    return Step(client, "sub", filter)


def usub(client: str, filter: Filter) -> Step:
    return Step(client, "usub", filter)


def adv(client: str, filter: Filter) -> Step:
    return Step(client, "adv", filter)


def uadv(client: str, filter: Filter) -> Step:
    return Step(client, "uadv", filter)


def pub(client: str, **point: Value) -> Step:
    return Step(client, "pub", point=named(point))


def tcm(client: str, **point: Value) -> Step:
    return Step(client, "tcm", point=named(point))


def named(point: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removesuffix("_"): value for name, value in point.items()}


def chain(n: int) -> nx.Graph[str]:
    tree: nx.Graph[str] = nx.Graph()
    tree.add_node("B1")
    tree.add_edges_from((f"B{i}", f"B{i + 1}") for i in range(1, n))
    return tree
