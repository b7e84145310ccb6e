"""Chances of draft tokens: what is counted, what is not judged, and that they fall along a path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.acceptance_stats import TokenAcceptance
from speculation.wire import ROOT


@given(st.data())
def test_chances_are_chances_and_fall_along_a_path(data: st.DataObject) -> None:
    acceptance = TokenAcceptance()
    for _ in range(data.draw(st.integers(0, 6))):
        parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(data.draw(st.integers(1, 12)))]
        path, node = [], ROOT
        while (below := [n for n, parent in enumerate(parents) if parent == node]) and data.draw(st.booleans()):
            node = data.draw(st.sampled_from(below))
            path.append(node)
        acceptance.judged(parents, path)
        found = acceptance.reach(parents)
        assert all(0.0 < chance < 1.0 for chance in (*found, acceptance.share))
        assert all(parent == ROOT or found[node] < found[parent] for node, parent in enumerate(parents))
