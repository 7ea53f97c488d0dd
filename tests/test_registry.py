"""Engines that cannot be used are refused when they are loaded, with the reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

import padres_tx
from padres_tx import engines, registry
from padres_tx.engine_declaration import ATOMIC, EngineDeclaration
from padres_tx.engines import bl_wait, d_tx_ni
from padres_tx.engines.d_tx_ni.broker import DTxNI
from padres_tx.protocol.dynamic import Dynamic


class Toy(DTxNI):
    name = "toy"


class NoScope(Dynamic):
    name = "toy"

    def judge(self, tx: Any) -> Any:
        return None


class Durable(Toy):
    durable = True


RIGHT = EngineDeclaration(broker=Toy, client="dynamic")


def loaded(monkeypatch: pytest.MonkeyPatch, **names: Any) -> EngineDeclaration:
    """What `registry.load` makes of an engine whose module has these names."""
    module = ModuleType("toy_module")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, f"{engines.__name__}.toy", module)
    return registry.load("toy")


def test_an_engine_that_is_right_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, engine=RIGHT) is RIGHT
    assert RIGHT.promises == ATOMIC


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (None, "toy_module has no `engine = EngineDeclaration"),
        (replace(RIGHT, broker=NoScope), "NoScope lacks the required hook decided, scope, undecid"),
        (replace(RIGHT, broker=DTxNI), "DTxNI.name is 'd-tx-ni', expected 'toy'"),
        (replace(RIGHT, broker=Dynamic), "Dynamic lacks the required hook"),
        (replace(RIGHT, broker="Toy"), "broker is 'Toy', expected a subclass of overlay.broker"),
        (replace(RIGHT, broker=Durable), "Durable.durable is True, but it is not a DurableService"),
        (replace(RIGHT, client="dynamc"), "client is 'dynamc', expected 'dynamic', 'static' or"),
        (replace(RIGHT, client=Toy), "expected 'dynamic', 'static' or a subclass of ClientHalf"),
        (replace(RIGHT, promises=frozenset({"ordr"})), "unknown promise 'ordr'; there are order,"),
        (replace(RIGHT, promises=["order"]), "promises is .'order'., expected a frozenset"),
        (replace(RIGHT, versioned="yes"), "versioned is 'yes', expected True or False"),
        (replace(bl_wait.engine, promises=ATOMIC), "promises .*split.* takes a broker's half"),
    ],
)
def test_an_engine_that_is_wrong_is_refused(
    monkeypatch: pytest.MonkeyPatch, engine: Any, reason: str
) -> None:
    with pytest.raises(padres_tx.InvalidEngine, match=f"engine 'toy' cannot be used: .*{reason}"):
        loaded(monkeypatch, engine=engine)


def test_engines_are_found_by_what_they_promise() -> None:
    assert registry.by_promises(own=True) == ["d-tx", "d-tx-ni", "s-tx", "bl-wait"]
    assert registry.where(lambda engine: engine.isolated) == ["d-tx"]
    assert registry.where(lambda engine: "wait_s" in engine.options) == ["bl-wait"]
    assert registry.load("s-tx").is_static and not registry.load("d-tx-ni").is_static
    assert registry.load("d-tx-ni") is d_tx_ni.engine


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (f"{__name__}:NoScope", "NoScope lacks the required hook decided, scope, undecided"),
        (f"{__name__}:Missing", "has no attribute 'Missing'"),
        (f"{__name__}:RIGHT", "expected a subclass of overlay.broker.engine.Engine"),
        ("no_such_module:Toy", "No module named 'no_such_module'"),
    ],
)
def test_a_half_that_is_declared_by_its_place_is_checked_when_a_broker_needs_it(
    monkeypatch: pytest.MonkeyPatch, place: str, reason: str
) -> None:
    assert loaded(monkeypatch, engine=replace(RIGHT, broker=place)).broker == place
    with pytest.raises(padres_tx.InvalidEngine, match=f"engine 'toy' cannot be used: .*{reason}"):
        registry.broker_half("toy")


def test_a_half_that_is_declared_by_its_place_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, engine=replace(RIGHT, broker=f"{__name__}:Toy"))
    assert registry.broker_half("toy") is Toy
    assert registry.broker_half("d-tx-ni") is DTxNI
    assert registry.broker_half("bl-wait") is None


def test_of_an_engine_that_is_not_installed_what_all_must_be_is_expected() -> None:
    assert registry.properties("somebody-elses").promises == ATOMIC
    assert not registry.properties("somebody-elses").isolated
