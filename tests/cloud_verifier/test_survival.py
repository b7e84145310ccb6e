"""Survival: what is counted, what is not judged, and that the chances become those of the target."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.survival import Survival
from speculation.wire import ROOT


@given(st.data())
def test_chances_are_chances_and_fall_along_a_path(data: st.DataObject) -> None:
    survival = Survival()
    for _ in range(data.draw(st.integers(0, 6))):
        parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(data.draw(st.integers(1, 12)))]
        path, node = [], ROOT
        while (below := [n for n, parent in enumerate(parents) if parent == node]) and data.draw(st.booleans()):
            node = data.draw(st.sampled_from(below))
            path.append(node)
        survival.judged(parents, path)
        found = survival.of(parents)
        assert all(0.0 < chance < 1.0 for chance in (*found, survival.share))
        assert all(parent == ROOT or found[node] < found[parent] for node, parent in enumerate(parents))
