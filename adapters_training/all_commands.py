"""The commands of this package."""

from __future__ import annotations

from typing import Any

from adapters_training import answers, data, evaluate, exits, pair, shapes, store_int8, text_draft
from adapters_training.command import Command
from adapters_training.exit_choice import measure, select
from adapters_training.fed_head import training as fed_head
from adapters_training.predictor import command as predictor
from adapters_training.verifier_profile import command as profile

COMMANDS: tuple[Command[Any], ...] = (
    data.COMMAND,
    shapes.COMMAND,
    pair.COMMAND,
    answers.COMMAND,
    exits.COMMAND,
    measure.COMMAND,
    select.COMMAND,
    fed_head.COMMAND,
    text_draft.COMMAND,
    predictor.COMMAND,
    profile.COMMAND,
    evaluate.COMMAND,
    store_int8.COMMAND,
)
