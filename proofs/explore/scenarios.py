"""The named scenarios: each shows one possible anomaly, as small as it can be.

Each scenario has the rules with which it is explored: "ours", with which no run may end in an
anomaly, and weaker ones, with which the search must find the anomaly that they lead to. "paper" is
the published rule where there is one. The numbers in brackets are those of the sections in
`docs/decisions.md`.
"""

from __future__ import annotations

from proofs.explore.abort_scenarios import COMPENSATION, FAULTS
from proofs.explore.dynamic_scenarios import CONFLICTS, HANDOVERS
from proofs.explore.static_scenarios import STATIC

SCENARIOS = {each.name: each for each in [*HANDOVERS, *CONFLICTS, *STATIC, *COMPENSATION, *FAULTS]}
