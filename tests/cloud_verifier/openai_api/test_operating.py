"""The chat API as an operator runs it: CURVE keys, quotas, keys that are taken back, its process killed, a drain."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx2
import openai
import pytest

from cloud_verifier.__main__ import main
from tests.cloud_verifier.openai_api.serving import LIMIT_S, as_robot, client, serving
from tests.cloud_verifier.process import frontends_of
from tests.edge_drafter.waiting import wait_for

CLIENTS = ("alice", "bob", "carol", "dave")


def made(folder: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return API keys that `keygen` has made, with CURVE keys for their requests."""
    keys = {}
    for name in CLIENTS:
        assert main(["keygen", "--keys", str(folder), "--client", name, "--api-keys", str(file)]) == 0
        keys[name] = capsys.readouterr().out.splitlines()[-1].partition(":")[0]
    return keys


def test_a_day_of_the_chat_api(tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "keys", tmp_path / "api_keys"
    keys = made(folder, file, capsys)
    assert file.stat().st_mode & 0o077 == 0
    ask = {"model": "target", "messages": as_robot(0), "temperature": 0, "max_tokens": 8}
    flags = ("--keys", str(folder), "--steps-per-s", "0.05", "--drain-s", "60", "--capacity", "1024")
    with serving(tiny_target, file, *flags) as (verifier, url):
        clients = {name: client(url, key) for name, key in keys.items()}
        ask["model"] = next(iter(clients["alice"].models.list())).id

        whole = clients["alice"].chat.completions.create(**ask).choices[0].message.content  # type: ignore[call-overload]
        assert whole and any("session 1 (alice)" in line for line in verifier.log), "the verifier knows whose it is"
        with pytest.raises(openai.RateLimitError) as limited:
            clients["alice"].chat.completions.create(**ask)  # type: ignore[call-overload]
        assert "--steps-per-s" in limited.value.message and limited.value.code == "rate_limit_exceeded"
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 30

        lines = file.read_text().splitlines()
        file.write_text("\n".join(line for line in lines if not line.startswith("dave")) + "\neve short\n")
        wait_for(lambda: any("who may use the chat API stays as it was" in line for line in verifier.log))
        assert clients["dave"].models.list().data, "a file that cannot be used changes nothing"
        file.write_text("\n".join(line for line in lines if not line.startswith("dave")))
        wait_for(lambda: status(url, keys["dave"]) == 401)

        (api,) = [pid for pid in frontends_of(verifier.process.pid) if b"openai_api" in command_of(pid)]
        os.kill(api, signal.SIGKILL)
        wait_for(lambda: any("starting another" in line for line in verifier.log))
        wait_for(lambda: status(url, keys["carol"]) == 200)
        again = clients["carol"].chat.completions.create(**ask)  # type: ignore[call-overload]
        assert again.choices[0].message.content == whole

        stream = clients["bob"].chat.completions.create(**{**ask, "stream": True, "max_tokens": 300})  # type: ignore[call-overload]
        next(stream)
        ending = threading.Thread(target=verifier.stop)
        ending.start()
        wait_for(lambda: any("draining" in line for line in verifier.log))
        with pytest.raises(openai.APIStatusError) as drained:
            clients["carol"].chat.completions.create(**ask)  # type: ignore[call-overload]
        assert drained.value.status_code == 503 and "drained" in drained.value.message
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text.startswith(whole.rstrip("\N{REPLACEMENT CHARACTER}")), "what was begun is answered to its end"
        ending.join()
        assert verifier.process.poll() == 0


def status(url: str, key: str) -> int:
    try:
        return httpx2.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"}, timeout=LIMIT_S).status_code
    except httpx2.HTTPError:  # its process is being started again
        return 0


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
