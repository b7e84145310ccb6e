"""Command line of the verifier: `serve` and `keygen`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cloud_verifier.config import SHORT_LISTS, ServerConfig, StartError
from cloud_verifier.exit_queue import QueuePolicy
from cloud_verifier.logs import start_logging
from speculation.vlm.settings import ATTENTION, DTYPES, Quantisation

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ServerConfig)}
_log = logging.getLogger("cloud_verifier")


def parser() -> argparse.ArgumentParser:
    """Return the command line; its defaults are those of `ServerConfig`."""
    top = argparse.ArgumentParser(prog="cloud_verifier", description="Verifies robots' drafts with one target model.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a target model and serve it", description=serve_model.__doc__)

    def add(flag: str, text: str, **how: Any) -> None:
        default = _DEFAULTS[flag.lstrip("-").replace("-", "_")]
        shown = "" if default in (None, False) else f" (default: {getattr(default, 'value', default)})"
        serve.add_argument(flag, help=text + shown, default=default, **how)

    serve.add_argument(
        "--model", type=Path, required=True, help="folder of a Qwen2-VL or Qwen2.5-VL model, or its name on the hub"
    )
    add("--bind", "address, tcp://HOST:PORT; port * takes a free one")
    add("--exits", "folder of exit heads; default: the model's folder, or `exits` beside it", type=Path)
    add("--draft-model", "a draft model beside the target, for robots in mode server_sd", type=Path)
    add("--short-list", "exits say only the frequent tokens of their short list, if they have one", choices=SHORT_LISTS)
    add("--profile", "device profile of config/profiles.json, whose target time is waited for")
    add("--threads", "CPU threads of the model", type=int)
    add("--dtype", "what the model computes in", choices=DTYPES)
    add("--device", "where the model runs, e.g. cpu or cuda")
    add("--attention", "attention backend", choices=ATTENTION)
    # LLM.int8() is no choice: it cannot verify.
    exact = [each.value for each in Quantisation if each.is_exact]
    add("--quantisation", "what the weights are rounded to while loading", choices=exact)
    add("--min-pixels", "least pixels of a resized frame; 0 keeps the model's own", type=int)
    add("--max-pixels", "most pixels of a resized frame; 0 keeps the model's own", type=int)
    add("--text-only", "serve a language model alone, to edges that send no frames (benchmarks)", action="store_true")
    add("--allow-download", "fetch a model that is given by its name on the hub and not on disk", action="store_true")
    add("--max-sessions", "robots at once", type=int)
    add("--max-batch", "robots in one forward", type=int)
    add("--max-draft", "tokens in one draft", type=int)
    add("--capacity", "cache slots of a session: image and prompt, answer and draft must fit", type=int)
    add("--keys", "folder of CURVE keys; encrypts, and only robots with a key may connect", type=Path)
    add(
        "--allow-plain",
        "allow a public address without keys",
        nargs="?",
        const=True,
        type=true_or_false,
        metavar="true|false",
    )
    add("--trace", "write a Chrome/Perfetto trace here at the end", type=Path)
    add("--log-file", "log here instead of to stderr; six files of 10 MB at most", type=Path)
    add("--queue-policy", "which early token leaves first", choices=[policy.value for policy in QueuePolicy])
    add("--early-rate", "early tokens per second and session", type=float)
    add("--early-burst", "early tokens of a session that may leave at once", type=int)
    add("--collect-s", "seconds that a ready session waits for others to share its forward", type=float)
    add("--pass-price", "tokens that a target forward must bring before an idle step does not wait", type=float)
    add("--hint-tokens", "tokens of an earlier answer that are verified at once where no draft is at hand", type=int)
    add("--idle-s", "seconds of silence after which a session is closed", type=float)
    add("--seed", "seed of queue policy random", type=int)
    keygen = commands.add_parser("keygen", help="make CURVE keys for the server and a robot")
    keygen.add_argument("--keys", type=Path, required=True, help="folder to make them in")
    keygen.add_argument("--client", default="client", help="name of the robot (default: client)")
    return top


def true_or_false(word: str) -> bool:
    """Read the value that a launch argument gives a flag. Raises ArgumentTypeError for other words."""
    if word not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word == "true"


def serve_model(config: ServerConfig) -> None:
    """Load a target model and serve it until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot."""
    model, draft_model = config.model_folder, config.draft_folder
    config.check_exits()
    # Late, so that a wrong command line answers at once and `keygen` needs no torch.
    from cloud_verifier.mailbox import Mailbox
    from cloud_verifier.preparation import THREADS
    from cloud_verifier.server import Server
    from speculation.profiles import load_profile
    from speculation.trace import Trace

    profile = load_profile(config.profile)
    mailbox = Mailbox(config)
    try:
        from cloud_verifier.engine import VlmEngine, find_exits
        from cloud_verifier.self_draft import SelfDraft, check_pair
        from speculation.vlm.load import load_vlm
        from speculation.vlm.speed import announce

        try:
            if draft_model is not None:
                check_pair(model, draft_model)
            vlm = load_vlm(model, config.settings)
            announce(vlm, _log)
            exits = find_exits(config, vlm)
            rows, capacity = config.max_sessions, config.capacity
            engine = VlmEngine(vlm, rows, capacity, exits, max_draft=config.max_draft)
            self_draft = None
            if draft_model is not None:
                beside = load_vlm(draft_model, config.settings)
                announce(beside, _log)
                self_draft = SelfDraft(beside, rows, capacity, vlm.eos, config.max_draft)
                _log.info("%s drafts beside the target for robots in mode server_sd", self_draft.name)
        except (RuntimeError, AssertionError) as error:  # how torch says: no such device, no such memory
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise StartError(f"--device {config.device}: {reason}") from None
        trace = Trace() if config.trace is not None else None
        server = Server(engine, config, profile, mailbox, trace, self_draft=self_draft, preparation_threads=THREADS)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: server.stop())
        size = sum(weight.numel() for weight in vlm.model.parameters()) / 1e6
        info = engine.model
        _log.info(
            "serving %s (%s, %.1f M parameters, %d layers, exits after %s) in %s on %s at %s, profile %s",
            info.name, info.fingerprint, size, info.num_layers, list(info.exit_layers) or "none", config.dtype,
            config.device, mailbox.address, profile.name,
        )  # fmt: skip
        server.run()
        if trace is not None and config.trace is not None:
            trace.write(config.trace)
    finally:
        mailbox.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = vars(parser().parse_args(arguments))
    command = options.pop("command")
    try:
        start_logging(options.get("log_file"))
        if command == "keygen":
            from cloud_verifier.security import make_keys

            for path in make_keys(options["keys"], options["client"]):
                print(path)
        else:
            os.environ.setdefault("OMP_NUM_THREADS", str(options["threads"]))
            if not options["allow_download"]:
                os.environ.setdefault("HF_HUB_OFFLINE", "1")
            os.environ.setdefault("TQDM_DISABLE", "1")  # log lines, no progress bars
            options["queue_policy"] = QueuePolicy(options["queue_policy"])
            serve_model(ServerConfig(**options))
    except (StartError, ValueError, OSError) as error:
        print(f"cloud_verifier: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
