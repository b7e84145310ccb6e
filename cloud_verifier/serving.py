"""Serves one target model in this process: loads it with what stands beside it, and runs the server until it ends."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.monitoring.health import VerifierHealth
from cloud_verifier.monitoring.http_server import pages_served
from speculation.language.grammar import grammars_of
from speculation.pass_cost import COST_FILE, CostProfile, load_cost_profile
from speculation.text import first_line
from speculation.trace import Trace
from speculation.vlm.settings import RAW, ModelSettings

if TYPE_CHECKING:
    from cloud_verifier.cluster.member import Member
    from cloud_verifier.engine import VlmEngine
    from cloud_verifier.frontend.supervisor import Frontend
    from cloud_verifier.server_draft.drafting import ServerDraft
    from speculation.profiles import DeviceProfile
    from speculation.vlm.model import Vlm

_log = logging.getLogger("cloud_verifier")


def prepare_process(settings: ModelSettings) -> None:
    """Set what libraries read from the environment when they are imported."""
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    if not settings.allow_download:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # log lines, no progress bars


def serve_model(config: ServerConfig, member: Member | None = None) -> None:
    """Load a target model and serve it until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot.

    `member` is what makes it one of a cluster.
    """
    prepare_process(config.model)
    with ExitStack() as stack:
        figures = Figures(time.monotonic)
        health = VerifierHealth(figures, time.monotonic, config.monitoring.hang_s)
        pages = stack.enter_context(pages_served(config.monitoring, health, config.chat_api.api_keys is not None))
        config.check_folders()
        # Late, so that a wrong command line answers at once and `keygen` needs no torch.
        from cloud_verifier.frontend.supervisor import Frontend
        from cloud_verifier.openai_api.process import chat_api_served
        from speculation.profiles import load_profile

        profile = load_profile(config.target.profile)
        if profile.verify_s and config.target.pass_cost is not None:
            raise StartError(f"--pass-cost: profile {profile.name} declares what passes take; leave one of the two out")
        link = config.link
        frontend = Frontend(link.bind, link.keys, link.allow_plain, config.quotas.bytes_per_s)
        stack.enter_context(closing(frontend))
        stack.enter_context(chat_api_served(config, frontend.address, pages))
        _serve(config, profile, frontend, figures, health, member)


def _serve(
    config: ServerConfig,
    profile: DeviceProfile,
    frontend: Frontend,
    figures: Figures,
    health: VerifierHealth,
    member: Member | None,
) -> None:
    from cloud_verifier.image_decoding import THREADS
    from cloud_verifier.machine import Machine
    from cloud_verifier.security import public_key
    from cloud_verifier.server import Server
    from cloud_verifier.sessions import check_welcome

    trace, trace_file = Trace(), config.monitoring.trace
    if trace_file is not None and not trace_file.is_file():
        _write(trace, trace_file)  # an empty one: where none can be written is said now, and not after a day
    try:
        vlm, engine, server_draft = load_engines(config)
        compile_grammars(engine.model)
        check_welcome(engine.model, config.limits.max_draft, profile.name)
    except (RuntimeError, AssertionError) as error:  # what torch raises: no such device, no such memory
        raise StartError(f"--device {config.model.device}: {first_line(error)}") from None
    measured = find_cost(config, vlm) if not profile.verify_s else None  # declared times are not the machine's
    costs = (measured.cost, measured.encoding) if measured else ()
    machine = Machine(engine, server_draft, profile, *costs)
    kept = trace if trace_file is not None else None
    server = Server(machine, config, frontend, time.monotonic, figures, kept, member, THREADS)
    info = engine.model
    health.describe(
        model=info.name, fingerprint=info.fingerprint, layers=info.num_layers, exit_layers=list(info.exit_layers),
        device=config.model.device, dtype=config.model.dtype, policy=config.scheduling.policy,
    )  # fmt: skip
    if member is None:
        signal.signal(signal.SIGTERM, lambda *_: server.drain())
        signal.signal(signal.SIGINT, lambda *_: server.stop())
    else:  # in a thread of its actor, which takes the signals
        member.serves_at(frontend.address, partial(public_key, config.link.keys), server.drain, server.shed)
    _log.info(
        "serving %s (%s, %.1f M parameters, %d layers, exits after %s) in %s on %s at %s, profile %s",
        info.name, info.fingerprint, sum(weight.numel() for weight in vlm.model.parameters()) / 1e6, info.num_layers,
        list(info.exit_layers) or "none", config.model.dtype, config.model.device, frontend.address, profile.name,
    )  # fmt: skip
    server.run(config.monitoring.hang_s)
    if trace_file is not None:
        _write(trace, trace_file)


def _write(trace: Trace, file: Path) -> None:
    try:
        trace.write(file)
    except OSError as error:
        raise StartError(f"--trace {file}: {error.strerror or error}") from None


def load_engines(config: ServerConfig) -> tuple[Vlm, VlmEngine, ServerDraft | None]:
    """Load the target, its engine, and the draft model beside it, if one is asked for.

    Raises ValueError, in one sentence; RuntimeError or AssertionError, by torch, for a device that cannot hold them.
    """
    from cloud_verifier.engine import VlmEngine, cache_blocks, find_encoder, find_exits
    from cloud_verifier.server_draft.drafting import ServerDraft, check_pair
    from speculation.vlm.blocks import BLOCK, blocks_for
    from speculation.vlm.load import load_vlm
    from speculation.vlm.speed import announce

    limits, draft_folder = config.limits, config.draft_folder
    if draft_folder is not None:
        check_pair(config.model_folder, draft_folder)
    vlm = load_vlm(config.model_folder, config.model)
    announce(vlm, _log)
    exits, encoder = find_exits(config, vlm), find_encoder(config, vlm)
    # It never answers alone, so what its own generation_config asks for is nobody's concern.
    draft = load_vlm(draft_folder, config.model, generation=RAW) if draft_folder is not None else None
    blocks = cache_blocks(limits, [vlm] if draft is None else [vlm, draft])
    engine = VlmEngine(
        vlm, limits.max_sessions, limits.capacity, exits, max_draft=limits.max_draft, blocks=blocks, encoder=encoder,
        captured=config.target.cuda_graphs == "on",
    )  # fmt: skip
    _log.info(
        "keys and values: %d blocks of %d slots, %d a session at most", blocks, BLOCK, blocks_for(limits.capacity)
    )
    if draft is None:
        return vlm, engine, None
    announce(draft, _log)
    server_draft = ServerDraft(
        draft, limits.max_sessions, limits.capacity, vlm.eos, limits.max_draft, blocks, vlm.repetition_penalty
    )
    _log.info("%s drafts beside the target: for mode server_sd, and mode full where it is faster", server_draft.name)
    return vlm, engine, server_draft


def compile_grammars(model: ModelInfo) -> None:
    """Compile what answers may look like before the first robot asks: with a large vocabulary it takes seconds."""
    if model.grammars is None:
        return
    started = time.perf_counter()
    for name in grammars_of(model.objects):
        model.grammars.of(name, model.eos, model.thinking)
    _log.info("grammars of answers compiled in %.2f s", time.perf_counter() - started)


def find_cost(config: ServerConfig, vlm: Vlm) -> CostProfile | None:
    """Return the profile of what passes cost, the one that `config` names or the model's own; None without one.

    Raises StartError for a file that was asked for and cannot be used.
    """
    asked = config.target.pass_cost
    path = asked if asked is not None else vlm.folder / COST_FILE
    if asked is None and not path.is_file():
        return None
    try:
        found = load_cost_profile(path)
        if problem := found.fits(vlm.fingerprint, config.model.dtype, str(vlm.device)):
            raise ValueError(f"pass cost {path}: {problem}")
    except ValueError as error:
        if asked is not None:
            raise StartError(f"--pass-cost: {error}") from None
        _log.warning("no profile of what passes cost, it is learned while serving: %s", error)
        return None
    _log.info("passes are predicted by %s (test R2 %.4f, MAPE %.1f %%)", path, found.test.r2, 100 * found.test.mape)
    return found
