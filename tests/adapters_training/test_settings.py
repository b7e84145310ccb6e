"""Settings come from defaults, a YAML file and the command line, in that order, and errors name the field."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from adapters_training.exits import ExitsConfig, Loss
from adapters_training.settings import add_options, read, read_file, write

NEEDED = ["--target", "models/target", "--data", "a.json", "b c.json", "--out", "out"]
CONFIGS = Path(__file__).resolve().parents[2] / "config" / "exits"


def parse(*words: str) -> ExitsConfig:
    parser = argparse.ArgumentParser()
    add_options(parser, ExitsConfig)
    return read(ExitsConfig, parser.parse_args([*words]))


def test_options_override_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "exits.yaml"
    path.write_text("rank: 32\nloss: kl\nlayers: [1, 2]\nlearning_rate: 1e-3\n", encoding="utf-8")
    config = parse(*NEEDED, "--config", str(path), "--rank", "16", "--packed", "--layers", "0,3", "4")
    assert (config.rank, config.loss, config.layers, config.learning_rate) == (16, Loss.KL, (0, 3, 4), 1e-3)
    assert config.packed and config.data == ("a.json", "b c.json")
    assert (config.epochs, config.batch, config.context) == (10.0, 1, 1600), "the paper's"
    write(config, tmp_path / "again.yaml")
    assert parse("--config", str(tmp_path / "again.yaml")) == config


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_are_read(path: Path) -> None:
    config = parse(*NEEDED, "--config", str(path))
    assert {name: getattr(config, name) for name in ("rank", "learning_rate")} == {
        name: read_file(path)[name] for name in ("rank", "learning_rate")
    }


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("rnak: 3", [], "unknown setting `rnak`"),
        ("rank: 0", [], "setting rank is 0: Expected `int` >= 1"),
        ("rank: many", [], "setting rank is 'many': Expected `int`, got `str`"),
        ("- 1", [], "must hold 'name: value' lines"),
        ("{", [], "is no YAML"),
        (None, [], "cannot be read: No such file"),
        ("", ["--loss", "both"], "setting loss is 'both': Invalid enum value 'both'; give one of ce, kl"),
        ("", ["--layers", "1,x"], "setting layers is "),
        ("", ["--epochs", "0"], "setting epochs is '0': Expected `float` > 0.0"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, text: str | None, words: list[str], sentence: str) -> None:
    path = tmp_path / "exits.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        parse(*NEEDED, "--config", str(path), *words)
    assert sentence in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="missing setting `target`"):
        parse("--data", "a.json", "--out", "out")
