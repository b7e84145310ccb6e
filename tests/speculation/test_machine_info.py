"""What names a machine: the same for every process under one kernel, nothing where the system has none for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculation.machine_info import BOOT_ID, busy_share, machine_id


def test_a_kernel_has_one_name_which_is_not_its_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_id() == machine_id()
    if BOOT_ID.exists():
        assert len(machine_id()) == 16 and machine_id() not in BOOT_ID.read_text().replace("-", "")
    names = []
    for number, text in enumerate(("one\n", "one", "two")):
        known = tmp_path / str(number)
        known.write_text(text)
        monkeypatch.setattr("speculation.machine_info.BOOT_ID", known)
        names.append(machine_id())
    assert names[0] == names[1] != names[2]


def test_a_system_that_names_no_kernel_shares_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculation.machine_info.BOOT_ID", tmp_path / "none")
    assert machine_id() == ""
    (tmp_path / "none").write_text("\n")
    assert machine_id() == ""


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
