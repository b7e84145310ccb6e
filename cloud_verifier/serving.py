"""Serves one target model in this process: loads it with what stands beside it, and runs the server until it ends."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.monitoring.health import VerifierHealth
from cloud_verifier.monitoring.http_server import pages_served
from cloud_verifier.start_error import need
from speculation.cost_profile import COST_FILE, CostProfile, load_cost_profile
from speculation.language.grammar import grammars_of

if TYPE_CHECKING:
    from cloud_verifier.cluster.member import Member
    from speculation.vlm.load import Vlm

_log = logging.getLogger("cloud_verifier")


def prepare_process(options: Mapping[str, Any]) -> None:
    """Set what libraries read from the environment when they are imported."""
    os.environ.setdefault("OMP_NUM_THREADS", str(options["threads"]))
    if not options["allow_download"]:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # log lines, no progress bars


@contextmanager
def monitored(config: ServerConfig) -> Iterator[tuple[Figures, VerifierHealth]]:
    """Make the figures of a verifier and serve them while it loads and runs. Raises StartError."""
    settings, clock = config.monitoring, time.monotonic
    with ExitStack() as stack:
        traces = None
        if settings.otlp is not None:
            need("otlp", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
            from cloud_verifier.monitoring.otlp import StepTraces
            from speculation.otlp import http_exporter

            traces = StepTraces(http_exporter(settings.otlp), clock)
            stack.callback(traces.close)
        figures = Figures(clock, traces)
        health = VerifierHealth(figures, clock, settings.hang_s)
        stack.enter_context(pages_served(settings, health))
        yield figures, health


def serve_model(config: ServerConfig, member: Member | None = None) -> None:
    """Load a target model and serve it until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot.

    `member` is what makes it one of a cluster.
    """
    with monitored(config) as (figures, health):
        _serve(config, figures, health, member)


def _serve(config: ServerConfig, figures: Figures, health: VerifierHealth, member: Member | None) -> None:
    model, draft_model = config.model_folder, config.draft_folder
    config.check_exits()
    config.check_fed_head()
    # Late, so that a wrong command line answers at once and `keygen` needs no torch.
    from cloud_verifier.frontend.supervisor import Frontend
    from cloud_verifier.image_decoding import THREADS
    from cloud_verifier.security import public_key
    from cloud_verifier.server import Server
    from cloud_verifier.sessions import check_welcome
    from speculation.profiles import load_profile
    from speculation.trace import Trace

    profile = load_profile(config.target.profile)
    if profile.verify_s and config.target.pass_cost is not None:
        raise StartError(f"--pass-cost: profile {profile.name} declares what passes take; leave one of the two out")
    link = config.link
    frontend = Frontend(link.bind, link.keys, link.allow_plain, config.quotas.bytes_per_s)
    try:
        from cloud_verifier.engine import VlmEngine, cache_blocks, find_encoder, find_exits
        from cloud_verifier.server_draft.drafting import ServerDraft, check_pair
        from speculation.vlm.blocks import BLOCK, blocks_for
        from speculation.vlm.load import load_vlm
        from speculation.vlm.speed import announce

        try:
            if draft_model is not None:
                check_pair(model, draft_model)
            vlm = load_vlm(model, config.model)
            announce(vlm, _log)
            exits = find_exits(config, vlm)
            encoder = find_encoder(config, vlm)
            limits = config.limits
            beside = load_vlm(draft_model, config.model) if draft_model is not None else None
            models = [vlm] if beside is None else [vlm, beside]
            blocks = cache_blocks(limits, models)
            rows, most = limits.max_sessions, limits.max_draft
            engine = VlmEngine(
                vlm, rows, limits.capacity, exits, max_draft=most, blocks=blocks, encoder=encoder,
                captured=config.target.cuda_graphs == "on",
            )  # fmt: skip
            compile_grammars(engine.model)
            check_welcome(engine.model, most, profile.name)
            self_draft = None
            if beside is not None:
                announce(beside, _log)
                self_draft = ServerDraft(beside, rows, limits.capacity, vlm.eos, most, blocks)
                _log.info(
                    "%s drafts beside the target: for mode server_sd, and mode full where it is faster", self_draft.name
                )
        except (RuntimeError, AssertionError) as error:  # what torch raises: no such device, no such memory
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise StartError(f"--device {config.model.device}: {reason}") from None
        trace = Trace() if config.output.trace is not None else None
        measured = find_cost(config, vlm) if not profile.verify_s else None  # declared times are not the machine's
        server = Server(
            engine, config, profile, frontend, trace, self_draft=self_draft, preparation_threads=THREADS,
            cost=measured.cost if measured else None, encoding=measured.encoding if measured else None,
            figures=figures, check_ticket=member.check_ticket if member else None,
            report=member.report if member else None,
        )  # fmt: skip
        health.describe(**_about(engine.model, config))
        if member is None:
            signal.signal(signal.SIGTERM, lambda *_: server.drain())
            signal.signal(signal.SIGINT, lambda *_: server.stop())
        else:  # in a thread of its actor, which takes the signals
            member.serves_at(frontend.address, partial(public_key, config.link.keys), server.drain, server.shed)
        need = blocks_for(limits.capacity)
        _log.info("keys and values: %d blocks of %d slots, %d a session at most", blocks, BLOCK, need)
        size = sum(weight.numel() for weight in vlm.model.parameters()) / 1e6
        info = engine.model
        _log.info(
            "serving %s (%s, %.1f M parameters, %d layers, exits after %s) in %s on %s at %s, profile %s",
            info.name, info.fingerprint, size, info.num_layers, list(info.exit_layers) or "none", config.model.dtype,
            config.model.device, frontend.address, profile.name,
        )  # fmt: skip
        server.run(config.monitoring.hang_s)
        if trace is not None and config.output.trace is not None:
            trace.write(config.output.trace)
    finally:
        frontend.close()


def _about(model: ModelInfo, config: ServerConfig) -> dict[str, Any]:
    """Return what `/version` shows of a loaded model."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "layers": model.num_layers,
        "exit_layers": list(model.exit_layers),
        "device": config.model.device,
        "dtype": config.model.dtype,
        "policy": config.scheduling.policy,
    }


def compile_grammars(model: ModelInfo) -> None:
    """Compile what answers may look like before the first robot asks: with a large vocabulary it takes seconds."""
    if model.grammars is None:
        return
    started = time.perf_counter()
    for name in grammars_of(model.objects):
        model.grammars.of(name, model.eos)
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
