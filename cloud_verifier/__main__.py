"""Command line of the verifier: `serve`, `cluster`, `keygen` and `top`; `replica` is what `cluster` starts."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import DRAIN_S, ClusterSettings
from cloud_verifier.config import ServerConfig, StartError, read_settings
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.logs import start_logging
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.monitoring.health import Watched
from cloud_verifier.monitoring.serving import need, pages_served
from speculation import early_end
from speculation.cost_profile import COST_FILE, CostProfile, load_cost_profile
from speculation.language.grammar import grammars_of
from speculation.settings import add_flags, fields_of, from_flags, path_flag

if TYPE_CHECKING:
    from cloud_verifier.cluster.member import Member
    from speculation.vlm.load import Vlm

_log = logging.getLogger("cloud_verifier")


def parser(settings: Mapping[str, Any] | None = None) -> argparse.ArgumentParser:
    """Return the command line; flags and defaults are those of `ServerConfig`, or of a file's `settings`."""
    top = argparse.ArgumentParser(prog="cloud_verifier", description="Verifies robots' drafts with one target model.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a target model and serve it", description=serve_model.__doc__)
    about = "YAML file of settings, as config/verifier.yaml of the ROS package; flags override it"
    serve.add_argument("--config", type=path_flag, default=argparse.SUPPRESS, help=about)
    add_flags(serve, ServerConfig, defaults=settings)
    about = "many verifiers behind one address, on the machines of a Ray cluster or on this one"
    cluster = commands.add_parser("cluster", help=about, description=serve_cluster.__doc__)
    cluster.add_argument("--config", type=path_flag, default=argparse.SUPPRESS, help="as of serve")
    add_flags(cluster, ClusterSettings)
    add_flags(cluster, Scaling, without=("min", "max"))
    add_flags(cluster, ServerConfig, defaults={"drain_s": DRAIN_S, **(settings or {})})
    replica = commands.add_parser("replica", help="one verifier of a cluster, which starts it", description="As serve.")
    replica.add_argument("--name", required=True, help="its name in the cluster")
    replica.add_argument("--supervisor", type=path_flag, required=True, help="socket of who has started it")
    add_flags(replica, ServerConfig)
    keygen = commands.add_parser("keygen", help="make CURVE keys for the server and a robot")
    keygen.add_argument("--keys", type=path_flag, required=True, help="folder to make them in")
    what = keygen.add_mutually_exclusive_group()
    what.add_argument("--client", default="client", help="name of the robot (default: client)")
    about = "make the key that is to replace the server's, for the robots to have it beforehand"
    what.add_argument("--next-server", action="store_true", help=about)
    about = "put the next key in place of the server's; a verifier that runs takes it up"
    what.add_argument("--switch-server", action="store_true", help=about)
    show = commands.add_parser("top", help="show what verifiers are doing, live", description=watch.__doc__)
    about = "a verifier's --http address (default: http://127.0.0.1:9155)"
    show.add_argument("urls", nargs="*", default=["http://127.0.0.1:9155"], metavar="URL", help=about)
    show.add_argument("--interval-s", type=float, default=1.0, help="seconds between two looks (default: 1)")
    show.add_argument("--once", action="store_true", help="look once and end")
    return top


def watch(urls: Sequence[str], interval_s: float, once: bool) -> None:
    """Show sessions, their classes, acceptance, latency and credit, from the /load of one or more verifiers."""
    need("monitoring", "rich")
    from cloud_verifier.monitoring.top import show

    if not 0.1 <= interval_s <= 3600.0:
        raise StartError(f"--interval-s {interval_s:g} is outside 0.1 to 3600")
    early_end.over()
    show(urls, interval_s, once)


@contextmanager
def monitored(config: ServerConfig) -> Iterator[tuple[Figures, Watched]]:
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
        watched = Watched(figures, clock, settings.hang_s)
        stack.enter_context(pages_served(settings, watched))
        yield figures, watched


def serve_cluster(options: dict[str, Any]) -> None:
    """Serve one model by many verifiers until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot."""
    settings = from_flags(ClusterSettings, options)
    options = {**options, "device": settings.device(options["device"])}
    config = ServerConfig.of(**{name: options[name] for name in _names(ServerConfig)})
    scaling = from_flags(Scaling, {name: options[name] for name in _names(Scaling) - {"min", "max"}})
    # Here, so that a wrong setting is one sentence and not one a replica.
    _ = config.model_folder, config.draft_folder
    config.check_exits()
    config.check_fed_head()
    if settings.on == "local":
        from cloud_verifier.cluster.local import serve
    else:
        from cloud_verifier.cluster.on_ray import serve
    serve(options, config, settings, scaling)


def _names(struct: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in fields_of(struct)}


def serve_model(config: ServerConfig, member: Member | None = None) -> None:
    """Load a target model and serve it until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot.

    `member` is what makes it one of a cluster.
    """
    with monitored(config) as (figures, watched):
        _serve(config, figures, watched, member)


def _serve(config: ServerConfig, figures: Figures, watched: Watched, member: Member | None) -> None:
    model, draft_model = config.model_folder, config.draft_folder
    config.check_exits()
    config.check_fed_head()
    # Late, so that a wrong command line answers at once and `keygen` needs no torch.
    from cloud_verifier.door.supervisor import Door
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
    door = Door(link.bind, link.keys, link.allow_plain, config.quotas.bytes_per_s)
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
            engine, config, profile, door, trace, self_draft=self_draft, preparation_threads=THREADS,
            cost=measured.cost if measured else None, encoding=measured.encoding if measured else None,
            figures=figures, check_ticket=member.check_ticket if member else None,
            report=member.report if member else None,
        )  # fmt: skip
        watched.about = {**watched.about, **_about(engine.model, config)}
        signal.signal(signal.SIGTERM, lambda *_: server.drain())
        signal.signal(signal.SIGINT, lambda *_: server.stop())
        if member is not None:
            member.serves_at(door.address, partial(public_key, config.link.keys))
            member.follow(server.drain, server.shed)
        need = blocks_for(limits.capacity)
        _log.info("keys and values: %d blocks of %d slots, %d a session at most", blocks, BLOCK, need)
        size = sum(weight.numel() for weight in vlm.model.parameters()) / 1e6
        info = engine.model
        _log.info(
            "serving %s (%s, %.1f M parameters, %d layers, exits after %s) in %s on %s at %s, profile %s",
            info.name, info.fingerprint, size, info.num_layers, list(info.exit_layers) or "none", config.model.dtype,
            config.model.device, door.address, profile.name,
        )  # fmt: skip
        server.run(config.monitoring.hang_s)
        if trace is not None and config.output.trace is not None:
            trace.write(config.output.trace)
    finally:
        door.close()


def _about(model: ModelInfo, config: ServerConfig) -> dict[str, Any]:
    """Return what `/version` adds about a loaded model."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "layers": model.num_layers,
        "exit_layers": list(model.exit_layers),
        "device": config.model.device,
        "dtype": config.model.dtype,
        "policy": config.scheduling.policy,
    }


def serve_replica(name: str, supervisor: Path, config: ServerConfig) -> None:
    """Serve as one of a cluster, see `serve_model`."""
    from cloud_verifier.cluster.member import Member

    member = Member(name, supervisor, config.limits.max_sessions)
    try:
        serve_model(config, member)
    finally:
        member.close()


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


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line; what its flags leave out is as in its settings file, if it names one.

    Raises StartError for a file that cannot be used. A wrong command line ends the process, as argparse does.
    """
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument("--config", type=path_flag)
    path = files.parse_known_args(arguments)[0].config if arguments[:1] in (["serve"], ["cluster"]) else None
    options = vars(parser(read_settings(path) if path is not None else None).parse_args(arguments))
    options.pop("config", None)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, or 2 after one sentence on stderr."""
    json_on_stderr = False
    try:
        options = parse(sys.argv[1:] if arguments is None else list(arguments))
        command = options.pop("command")
        json_on_stderr = options.get("log_format") == "json" and options.get("log_file") is None
        replica = options["name"] if command == "replica" else ""
        start_logging(options.get("log_file"), options.get("log_format", "text"), replica)
        if command == "top":
            watch(**options)
        elif command == "keygen":
            from cloud_verifier.security import make_keys, make_next_key, purpose, switch_keys

            folder = options["keys"]
            if options["next_server"]:
                made = make_next_key(folder)
            else:
                made = switch_keys(folder) if options["switch_server"] else make_keys(folder, options["client"])
            for path in made:
                print(f"{path}: {purpose(path)}")
        else:
            os.environ.setdefault("OMP_NUM_THREADS", str(options["threads"]))
            if not options["allow_download"]:
                os.environ.setdefault("HF_HUB_OFFLINE", "1")
            os.environ.setdefault("TQDM_DISABLE", "1")  # log lines, no progress bars
            if command == "cluster":
                serve_cluster(options)
            elif command == "replica":
                serve_replica(options.pop("name"), options.pop("supervisor"), ServerConfig.of(**options))
            else:
                serve_model(ServerConfig.of(**options))
    except (StartError, ValueError, OSError) as error:
        if json_on_stderr:
            _log.critical("%s", error)
        else:
            print(f"cloud_verifier: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
