"""The times at which modes on real sockets are tuned: declared, or as a run had them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.at_best import times_of
from speculation.profiles import DeviceProfile
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import Synthetic, Timings, VirtualTime

HAD = Timings("had", draft_s=0.01, verify_s=0.05, edge_prefill_s=0.02, cloud_prefill_s=0.03)


def test_what_is_not_declared_is_as_it_was_measured() -> None:
    run = VirtualTime(Synthetic(tokens=12).draw(2), HAD).run([Arm(mode, mode) for mode in ("cloud", "sd")])
    raw = times_of(DeviceProfile("raw"), run, Path("models/none"))
    assert (raw.draft_s, raw.verify_s, raw.server_draft_s) == pytest.approx((0.01, 0.05, 0.01))
    assert (raw.edge_prefill_s, raw.cloud_prefill_s) == pytest.approx((0.02, 0.03))
    assert raw.draft_leaf > 0.0 and raw.cost is None and raw.one_way_s == 0.0
    priced = times_of(DeviceProfile("raw"), run, Path("models/target"))
    assert priced.cost is not None and priced.name == "raw, as measured"
    declared = times_of(DeviceProfile("go2", 0.072, 0.62, 0.12, server_draft_s=0.011), run, Path("models/target"))
    assert (declared.draft_s, declared.verify_s, declared.one_way_s) == (0.072, 0.62, 0.12)
    assert declared.cost is None and declared.server_draft_s == 0.011, "a pass that is waited for has no load"
    assert declared.draft_leaf == 0.0 and declared.cloud_prefill_s == pytest.approx(0.03)
