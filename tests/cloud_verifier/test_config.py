"""Settings of the verifier are checked before anything is loaded; a target must see and must verify exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cloud_verifier.__main__ import main, parse, parser
from cloud_verifier.config import EXITS_FILE, ServerConfig, StartError
from speculation.settings import fields_of
from tests.models import tiny_text_model


def test_target_is_a_folder_or_a_name_and_sees(tiny_target: Path, tmp_path: Path) -> None:
    assert ServerConfig.of(tiny_target).model_folder == tiny_target
    with pytest.raises(StartError, match="--max-pixels 5 is outside"):
        ServerConfig.of(tiny_target, max_pixels=5)
    with pytest.raises(StartError, match="--model nobody/nothing: model nobody/nothing does not exist as a folder"):
        _ = ServerConfig.of(Path("nobody/nothing")).model_folder
    blind = tiny_text_model(tmp_path / "blind", layers=1)
    with pytest.raises(StartError, match="a language model alone sees no camera"):
        _ = ServerConfig.of(blind).model_folder
    assert ServerConfig.of(blind, text_only=True).model_folder == blind
    assert ServerConfig.of(blind, draft_model=blind, text_only=True).draft_folder == blind
    with pytest.raises(StartError, match="it sees images, --text-only serves a language model alone"):
        _ = ServerConfig.of(tiny_target, text_only=True).model_folder


def test_exits_beside_a_model_named_by_its_hub_name_are_found(hub: Path) -> None:
    config = ServerConfig.of(Path("me/tiny"))
    assert config.exits_folder is None
    beside = hub.parent / "exits"
    for folder in (beside, hub):
        folder.mkdir(exist_ok=True)
        (folder / EXITS_FILE).write_text("{}")
        assert config.exits_folder == folder
    with pytest.raises(StartError, match="--model nobody/nothing: model nobody/nothing does not exist as a folder"):
        _ = ServerConfig.of(Path("nobody/nothing")).exits_folder


def test_every_setting_is_a_flag_with_a_description_and_reaches_its_struct() -> None:
    fields = fields_of(ServerConfig)
    assert all(field.description for field in fields)
    given = {
        "model": "m", "exits": "e", "pass_cost": "p", "draft_model": "d", "fed_head": "f",
        "text_only": "true", "profile": "go2", "device": "cuda", "dtype": "bfloat16", "threads": "3",
        "quantisation": "nf4", "min_pixels": "4000", "max_pixels": "5000", "generation": "raw",
        "load_check": "false", "allow_download": "true", "max_sessions": "3", "max_draft": "5",
        "capacity": "256", "idle_s": "7.5", "drain_s": "8.5", "policy": "fcfs", "max_batch": "2", "collect_s": "0.25",
        "guard_s": "0.05", "patience_s": "3.0",
        "pass_price": "0.75", "hint_tokens": "4", "forced_tokens": "3", "queue_policy": "fifo", "early_rate": "2.5",
        "early_burst": "9",
        "prefill_chunk": "64", "memory": "2gb", "frames": "3",
        "bind": "tcp://127.0.0.1:1", "keys": "k", "allow_plain": "true", "trace": "t", "log_file": "l",
        "sessions_per_client": "2", "steps_per_s": "1.5", "bytes_per_s": "5000.0", "draft_tokens_per_s": "40.0",
        "log_format": "json", "http": "9100", "http_bind": "0.0.0.0", "hang_s": "20.0",
        "cuda_graphs": "off", "api_keys": "a", "api_sessions": "2",
    }  # fmt: skip
    assert set(given) == {field.name for field in fields}
    words = [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), value)]
    options = vars(parser().parse_args(["serve", *words]))
    options.pop("command")
    config = ServerConfig.of(**options)
    for part in msgspec.structs.astuple(config):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            assert str(getattr(value, "value", value)).lower() == given[name]


FILE = """
model: models/target
device: cuda
max-sessions: 3
capacity: 2048
collect_s: 0
allow_plain: true
keys: null
"""


def test_a_settings_file_stands_in_for_flags_that_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "verifier.yaml"
    path.write_text(FILE)
    options = parse(["serve", "--config", str(path), "--capacity", "4096"])
    assert options.pop("command") == "serve"
    config = ServerConfig.of(**options)
    assert (config.target.model, config.model.device, config.limits.max_sessions) == (Path("models/target"), "cuda", 3)
    assert (config.limits.capacity, config.link.allow_plain, config.link.keys) == (4096, True, None)
    assert config.scheduling.collect_s == 0.0


def test_the_settings_file_that_comes_along_names_settings_of_the_verifier(tmp_path: Path) -> None:
    shipped = Path(str(__file__)).parents[2] / "ros_ws/src/spec_vlm_nav/config/verifier.yaml"
    lines = [line[2:] for line in shipped.read_text().splitlines() if line.startswith("# ") and ": " in line]
    path = tmp_path / "all.yaml"
    path.write_text("\n".join(line for line in lines if line.split(":")[0].isidentifier()))
    known = {field.name for field in fields_of(ServerConfig)}
    options = parse(["serve", "--config", str(path)])
    assert options["device"] == "cuda" and len(path.read_text().splitlines()) > 10
    assert options.keys() - {"command"} == known


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("capacities: 1", "unknown setting 'capacities'; did you mean capacity?"),
        ("capacity: lots", "capacity is 'lots', which is no int"),
        ("capacity: 1", "capacity 1 is outside 128 to"),
        ("dtype: int4", "dtype 'int4' is none of bfloat16"),
        ("- a list", "holds no names with values"),
        ("a: [", "is no YAML"),
        ("capacity: 256\ncapacity: 512", "'capacity' stands there twice, again in line 2"),
        ("max_draft: 8\nmax-draft: 9", "max_draft stands there twice"),
        ("keys: ''", "keys is empty"),
    ],
)
def test_a_wrong_settings_file_is_named_with_what_is_wrong(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "verifier.yaml"
    path.write_text(text)
    assert main(["serve", "--config", str(path), "--model", "x"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"cloud_verifier: --config {path}") and sentence in printed


@pytest.mark.parametrize("address", ["", "[]"])
def test_pages_of_an_empty_address_would_be_everybodys(address: str) -> None:
    with pytest.raises(StartError, match="--http-bind is empty"):
        ServerConfig.of(Path("m"), http=0, http_bind=address, api_keys=Path("keys"))


def test_a_log_file_that_cannot_be_written_is_named_with_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", "m", "--log-file", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"cloud_verifier: --log-file {tmp_path}: Is a directory\n"


def test_memory_is_given_as_people_write_it() -> None:
    for text, size in (("1.5 gb", 1_500_000_000), ("512M", 512_000_000), ("4096", 4096), (None, None)):
        assert ServerConfig.of(Path("m"), memory=text).limits.memory_bytes == size
    for text in ("", "-1GB", "0", "2 apples", "1e9"):
        with pytest.raises(StartError, match="--memory .* is no size such as 2GB or 512MB"):
            ServerConfig.of(Path("m"), memory=text)
