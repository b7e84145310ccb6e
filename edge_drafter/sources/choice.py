"""Chooses which draft sources a mode uses."""

from __future__ import annotations

from edge_drafter.protocols import DraftModel, FedModel
from edge_drafter.settings import DraftingConfig
from edge_drafter.sources import DraftSource
from edge_drafter.sources.fed import FedSource
from edge_drafter.sources.model import ModelSource
from edge_drafter.sources.ngrams import NgramSource
from edge_drafter.sources.server import ServerSource
from speculation.predictor import Predictor


def sources_of(
    config: DraftingConfig,
    model: DraftModel | None,
    predictor: Predictor | None = None,
    fed: FedModel | None = None,
) -> tuple[DraftSource, ...]:
    """Return new draft sources for these settings, those that need no forward first.

    `predictor` is the draft model's own. `fed` drafts in its place wherever a verifier feeds it. Raises ValueError
    where the settings need a model and there is none.
    """
    sources: list[DraftSource] = []
    if config.self_draft:
        sources.append(ServerSource(config.fixed_gamma, config.draft_tokens))
    if config.ngrams:
        sources.append(NgramSource())
    if fed is not None and config.drafts and config.needs_link:
        sources.append(FedSource(fed))
    elif config.drafts or not config.needs_link:
        if model is None:
            raise ValueError("this mode drafts on the edge: it needs a draft model")
        sources.append(ModelSource(model, predictor))
    return tuple(sources)
