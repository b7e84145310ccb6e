"""What names a machine: the same for every process under one kernel, nothing where the system has none for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculation.machine_info import BOOT_ID, busy_share, machine_id


def test_a_kernel_has_one_name_which_is_not_its_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_id() == machine_id()
    if BOOT_ID.exists():
        assert len(machine_id()) == 16 and machine_id() not in BOOT_ID.read_text().replace("-", "")
    monkeypatch.setattr("speculation.machine_info.BOOT_ID", known := tmp_path / "boot_id")
    names = [machine_id()]
    for text in ("one\n", "one", "two", "\n"):
        known.write_text(text)
        names.append(machine_id())
    assert names[1] == names[2] != names[3]
    assert names[0] == names[4] == "", "where the system names none, nobody shares it"


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("cpu  10 0 5 100 5 0 0 0", "cpu  13 0 6 104 7 0 0 0", 0.4),
        ("cpu  1 0 0 9", "cpu  1 0 0 9", 0.0),
        ("?", "?", 0.0),
    ],
)
def test_what_processors_did_meanwhile_is_their_busy_share(
    before: str, after: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (times := tmp_path / "stat").write_text(before)
    monkeypatch.setattr("speculation.machine_info.TIMES", times)
    monkeypatch.setattr("speculation.machine_info.time.sleep", lambda _: times.write_text(after))
    assert busy_share(0.5) == pytest.approx(share)
