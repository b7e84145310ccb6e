"""The file of API keys: what it may hold, and how it is read anew."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cloud_verifier.__main__ import main
from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.openai_api.keys import ApiKeys, add_key

LONG = "k" * 24


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_is_somebodys_or_nobodys(tmp_path: Path) -> None:
    file = written(tmp_path / "keys", f"# ours\n\nalice {LONG}  # first\nbob {LONG}b\n")
    keys = ApiKeys(file, None)
    assert (keys.name(LONG), keys.name(f"{LONG}b"), keys.name(""), keys.name("\udcff")) == ("alice", "bob", "", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"), ("alice short", "has not 20 to 200"), (f"alice {LONG} more", "line 1"),
        (f"a/b {LONG}", "letters, digits"), (f"alice {LONG}\nalice {LONG}2", "line 2: alice"),
        (f"alice {LONG}\nbob {LONG}", "stands there twice"), ("\udcff", "utf-8"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    file.chmod(0o600)
    with pytest.raises(StartError, match=says) as caught:
        ApiKeys(file, None)
    assert str(file) in str(caught.value)


def test_a_file_that_others_may_read_or_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="chmod 600"):
        ApiKeys(written(tmp_path / "keys", f"alice {LONG}", 0o640), None)
    with pytest.raises(StartError, match="it is a folder; name a file$"):
        ApiKeys(tmp_path, None)
    with pytest.raises(StartError, match="No such file"):
        ApiKeys(tmp_path / "none", None)


def test_changes_are_taken_up_and_what_cannot_be_used_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "cloud_verifier")
    file = written(tmp_path / "keys", f"alice {LONG}\nbob {LONG}b\n")
    keys = ApiKeys(file, None)
    assert keys.refresh() == set()
    file.write_text(f"alice {LONG}\nbob {LONG}newer\n")
    assert keys.refresh() == {"bob"} and keys.name(f"{LONG}newer") == "bob" and not keys.name(f"{LONG}b")
    file.write_text("junk")
    assert keys.refresh() == set() and keys.name(LONG) == "alice" and "stays as it was" in caplog.text
    file.unlink()
    assert keys.refresh() == set() and keys.name(LONG) == "alice"
    written(file, "# nobody\n")
    assert keys.refresh() == {"alice", "bob"} and not keys.name(LONG), "the last key can be taken back, too"


def test_keygen_makes_a_key_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    assert main(["keygen", "--api-keys", str(file), "--client", "alice"]) == 0
    key = capsys.readouterr().out.partition(":")[0]
    assert ApiKeys(file, None).name(key) == "alice" and file.stat().st_mode & 0o777 == 0o600
    assert main(["keygen", "--api-keys", str(file), "--client", "alice"]) == 2
    assert "has a key already" in capsys.readouterr().err
    assert main(["keygen"]) == 2 and "--api-keys" in capsys.readouterr().err
    with pytest.raises(StartError, match="letters"):
        add_key(file, "../x")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "give --http PORT"), ({"http": 0, "max_sessions": 4}, "leaves robots none"),
        ({"http": 0, "http_bind": "0.0.0.0"}, "in plain text"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(settings: dict[str, object], says: str) -> None:
    with pytest.raises(StartError, match=says):
        ServerConfig.of(Path("m"), api_keys=Path("keys"), **settings)
    ServerConfig.of(Path("m"), api_keys=Path("keys"), http=0, http_bind="0.0.0.0", allow_plain=True)
