"""What cannot run is refused before a process starts, in a sentence that names the argument or the parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_vlm_nav.graph import GRAPHS
from spec_vlm_nav.preflight import check
from tests.speculation.vlm.test_gguf_file import file_of


def refusal(graph: str, **given: str) -> str:
    """Return why a graph cannot run; empty where it can."""
    try:
        check(GRAPHS[graph], GRAPHS[graph].values(given))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("graph", ["sim", "go2", "verifier"])
def test_what_ships_can_run(graph: str) -> None:
    assert refusal(graph) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"draft_model": "/nonexistent"}, "argument draft_model:=/nonexistent: model folder /nonexistent does"),
        ({"drafting": "gama=3"}, "vlm_nav: drafting: 'gama' is unknown"),
        ({"link": "foo"}, "argument link:=foo: unknown link 'foo'; links.json has wifi"),
        ({"profile": "foo"}, "argument profile:=foo: unknown device profile 'foo'"),
        ({"target": "pink unicorn"}, "argument target:=pink unicorn: target colour 'pink' is not one of"),
        ({"verifier": "tcp://10.0.0.5:5555"}, "vlm_nav: verifier tcp://10.0.0.5:5555 is not on this machine's"),
        ({"trace": "/nope/x.json"}, "vlm_nav: trace /nope/x.json cannot be written: /nope is no folder"),
        ({"mode": "server_sd"}, "mode:=server_sd drafts beside the target: give server_draft:=FOLDER"),
        ({"keys": "/nope"}, "argument keys:=/nope: keys /nope: expected one NAME.key_secret"),
        ({"draft_model": "~nobody_has_it/m"}, "argument draft_model:=~nobody_has_it/m: there is no such home folder"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(given: dict[str, str], words: str) -> None:
    assert words in refusal("sim", **given)


def test_a_gguf_draft_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, eyes = tmp_path / "model.gguf", tmp_path / "eyes.gguf"
    model.write_bytes(file_of({"general.architecture": ("s", "qwen2vl")}))
    eyes.write_bytes(file_of({"general.architecture": ("s", "clip")}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spec_vlm_nav.preflight.need", lambda *_: None)
    assert refusal("sim", draft_model="model.gguf,eyes.gguf") == ""
    assert GRAPHS["sim"].values({"draft_model": "model.gguf,eyes.gguf"})["draft_model"] == f"{model},{eyes}"
    assert "not a vision tower" in refusal("sim", draft_model="model.gguf,model.gguf")
    assert "serve as a robot's draft model" in refusal("sim", target_model=str(model))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ("/**/vlm_nav: {ros__parameters: {stale_frame: 1.0}}", "vlm_nav has no parameter 'stale_frame'; did you mean"),
        ("/**/vlm_nav: {ros__parameters: {stale_frame_s: 1}}", "stale_frame_s is 1, which is no float; write 1.0"),
        ("/**/vlm_nav: {ros__parameters: {stale_frame_s: 1000.0}}", "stale_frame_s 1000.0 is outside 0.1 to 5"),
        ("/**/lifecycle_manager: {ros__parameters: {node_names: vlm_nav}}", "is 'vlm_nav', which is no list"),
        ("/**/vlm_nva: {ros__parameters: {stale_frame_s: 1.0}}", "names the node '/**/vlm_nva', which is none"),
        ("/**/vlm_nav: {stale_frame_s: 1.0}", "/**/vlm_nav holds no ros__parameters"),
        ("/**/go2_bridge: {ros__parameters: {guard: sonar}}", "go2_bridge: guard 'sonar' is none of"),
        ("/**: {vlm_nav: {ros__parameters: {stale_frame: 1.0}}}", "vlm_nav has no parameter 'stale_frame'"),
        ("/**/vlm_nav: {ros__parameters: {draft_model: /nope}}", "vlm_nav: draft_model /nope: model folder /nope does"),
    ],
)
def test_a_parameter_file_that_a_node_would_refuse_or_ignore_is_refused(tmp_path: Path, held: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(held, encoding="utf-8")
    why = refusal("sim", params_file=str(path))
    assert words in why


def test_what_belongs_to_others_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "/**: {ros__parameters: {use_sim_time: true, stale_frame_s: 2.0, laps: 4}}\n"
        "/**/action_executor: {ros__parameters: {watchdog_timeout: 2e-1}}\n"
        "/dog: {stop_watchdog: {ros__parameters: {watchdog_timeout: 0.2}}}\n"
        "/**/vlm_nav: {ros__parameters: {qos_overrides./odom.subscription.depth: 3, gamma: auto}}\n"
        "/controller_server: {ros__parameters: {controller_frequency: 20}}\n",
        encoding="utf-8",
    )
    assert refusal("sim", params_file=str(path)) == ""


def test_a_path_by_the_callers_folder_is_the_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    values = GRAPHS["replay"].values({"draft_model": "mine", "target_model": "Qwen/X", "fed_head": "off", "bag": "b"})
    assert [values[name] for name in ("draft_model", "target_model", "fed_head", "bag")] == [
        str(tmp_path / "mine"), "Qwen/X", "off", str(tmp_path / "b"),
    ]  # fmt: skip


def test_a_file_that_names_a_model_makes_up_for_one_that_is_not_where_it_is_by_default(tmp_path: Path) -> None:
    """Where neither exists the file's is named: an argument at its default gives way to it."""
    verifier, nodes = tmp_path / "verifier.yaml", tmp_path / "nodes.yaml"
    verifier.write_text("model: /nope/target\n", encoding="utf-8")
    nodes.write_text("/**/vlm_nav: {ros__parameters: {fed_head: 'off', draft_model: /nope/draft}}", encoding="utf-8")
    assert f"{verifier}: model /nope/target: model folder" in refusal("sim", verifier_config=str(verifier))
    assert "vlm_nav: draft_model /nope/draft: model folder" in refusal("sim", params_file=str(nodes))


def test_a_replay_needs_its_bag_and_a_question(tmp_path: Path) -> None:
    assert "argument bag:=/nope does not exist" in refusal("replay", bag="/nope", instruction="find the red box")
    assert "argument instruction is empty" in refusal("replay", bag=str(tmp_path))
