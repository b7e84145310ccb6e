"""What one robot drafts with: the draft model, its predictor and grammars, and a fed head in its place."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from edge_drafter.declared_times import PacedFedModel, PacedModel
from edge_drafter.llama_cpp import LlamaCppModel, LlamaCppSession
from edge_drafter.protocols import DraftModel, FedModel
from edge_drafter.settings import EdgeConfig
from speculation.fed.files import load_head
from speculation.fed.session import FedSession
from speculation.language.grammar import FREE, Grammars, grammars_of
from speculation.language.prompts import Vocabulary
from speculation.predictor import OFF, Predictor, find
from speculation.profiles import DeviceProfile
from speculation.settings import expanded
from speculation.vlm.folder import gguf_files
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import available_bytes, gigabytes
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.vlm.settings import ModelSettings
from speculation.vlm.speed import announce

_log = logging.getLogger(__name__)
LoadedDraft: TypeAlias = "Vlm | LlamaCppModel"
"""A checkpoint as a draft engine has loaded it, for any number of draft models."""


@dataclass
class DraftModels:
    """Everything that is loaded for drafting, with the profile's times declared."""

    loaded: LoadedDraft
    model: DraftModel
    objects: Vocabulary | None
    """The objects that the draft model was trained to find; None where it takes any instruction."""
    predictor: Predictor | None
    """The draft model's own: it knows nothing of a fed head's logits."""
    grammars: Grammars | None
    """None where answers are free."""
    fed: FedModel | None = None
    features: str = ""
    """The fingerprint of the features that the fed head needs."""


def load_draft_models(config: EdgeConfig, profile: DeviceProfile, loaded: LoadedDraft | None = None) -> DraftModels:
    """Load what a robot drafts with; `loaded` is the draft model where it is loaded already.

    Raises ValueError, in one sentence, for a model, predictor or head that cannot be used or does not fit the settings.
    """
    draft = loaded or _load_checked(config)
    objects, decoding = Vocabulary.load(draft.folder), config.decoding
    if config.frames > 1 and objects is not None and not decoding.settings(decoding.mode).needs_link:
        raise ValueError(f"frames is {config.frames}, but draft model {draft.name} was trained on one; set frames to 1")
    grammars = _compiled(draft, objects, decoding.max_tokens) if decoding.answers != FREE else None
    folder = find(decoding.predictor, draft.folder)
    predictor = Predictor.load(folder, draft.fingerprint) if folder is not None else None
    model = draft_session(draft, config.capacity, decoding.max_tokens)
    if profile.draft_s:
        model = PacedModel(model, profile.draft_s, layers=draft.num_layers)
    models = DraftModels(draft, model, objects, predictor, grammars)
    if decoding.fed_head != OFF:
        models.fed, models.features = _load_head(config, profile, draft)
    return models


def load_draft(name: Path | str, settings: ModelSettings) -> LoadedDraft:
    """Load a draft model with the engine for it: llama.cpp for MODEL.gguf[,MMPROJ.gguf], torch for anything else.

    Raises ValueError, in one sentence, for a model or setting that cannot be used.
    """
    files = gguf_files(name)
    return load_vlm(name, settings) if files is None else LlamaCppModel(files, settings)


def free_memory() -> int:
    """Return the bytes of this machine's memory that a draft model may take."""
    return available_bytes("cpu")


def draft_session(loaded: LoadedDraft, capacity: int, reserved: int = 0) -> DraftModel:
    """Return a draft model of its own over what is loaded.

    `reserved`: slots of `capacity` behind a prompt that its answer may need.
    """
    if isinstance(loaded, LlamaCppModel):
        return LlamaCppSession(loaded, capacity, reserved)
    return VlmSession(loaded, capacity, reserved)


def _load_checked(config: EdgeConfig) -> LoadedDraft:
    """Load the draft model. Raises ValueError for one that takes images or words against the settings."""
    draft = load_draft(config.draft_model, config.draft)
    if draft.sees_images and config.text_only:
        raise ValueError(
            f"draft model {draft.name} sees images, text_only wants a language model alone; leave text_only out"
        )
    lacks_vision = not draft.sees_images and not config.text_only
    if isinstance(draft, Vlm):
        if lacks_vision:
            raise ValueError(f"draft model {draft.name} is a language model alone; choose one that sees")
        announce(draft, _log)
        return draft
    _log.info("%s: llama.cpp, %s of weights on %s", draft.name, gigabytes(draft.weight_bytes), draft.device)
    if lacks_vision:
        _log.warning(
            "draft model %s has no vision tower: it drafts from the words alone and is right less often, answers "
            "stay the verifier's own (but in mode edge); give it its vision tower as MODEL.gguf,MMPROJ.gguf",
            draft.name,
        )
    return draft


def _compiled(draft: LoadedDraft, objects: Vocabulary | None, max_tokens: int) -> Grammars:
    """Return the grammars of answers. Raises ValueError for a limit that no answer keeps to."""
    grammars = Grammars(draft.tokenizer, draft.vocabulary, objects)
    for name in grammars_of(objects):
        least = grammars.of(name, draft.eos, draft.thinking).least_tokens
        if max_tokens < least:
            raise ValueError(f"max_tokens is {max_tokens}; a constrained answer takes at least {least}, or take {FREE}")
    return grammars


def _load_head(config: EdgeConfig, profile: DeviceProfile, draft: LoadedDraft) -> tuple[FedModel, str]:
    if profile.draft_s and not profile.fed_s:
        raise ValueError(
            f"profile {profile.name} declares draft_s and no fed_s, the time of a fed head's forward; declare it, or "
            "leave fed_head out"
        )
    folder = expanded(config.decoding.fed_head)
    head = load_head(folder, draft.tokenizer_fingerprint, config.draft.devices[0], getattr(torch, config.draft.dtype))
    size = sum(weight.numel() for weight in head.parameters()) / 1e6
    _log.info("fed head %s drafts: %.2f M parameters, features %s", folder, size, head.config.features)
    session = FedSession(head)
    return PacedFedModel(session, profile.fed_s) if profile.fed_s else session, head.config.features
