"""Command line of the verifier: `serve`, `cluster`, `keygen` and `top`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import DRAIN_S, ClusterSettings
from cloud_verifier.config import ServerConfig, StartError, read_settings
from cloud_verifier.logs import start_logging
from cloud_verifier.serving import prepare_process, serve_model
from cloud_verifier.start_error import need
from speculation import program_exit
from speculation.settings import CommandLine, add_flags, fields_of, from_flags, path_flag

_log = logging.getLogger("cloud_verifier")


def parser(settings: Mapping[str, Any] | None = None) -> argparse.ArgumentParser:
    """Return the command line; flags and defaults are those of `ServerConfig`, or of a file's `settings`."""
    about = "Verifies robots' drafts with one target model."
    top: argparse.ArgumentParser = CommandLine(prog="cloud_verifier", description=about)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    does = "Load a target model and serve it until SIGTERM or SIGINT."
    serve = commands.add_parser("serve", help="load a target model and serve it", description=does)
    about = "YAML file of settings, as config/verifier.yaml of the ROS package; flags override it"
    serve.add_argument("--config", type=path_flag, default=argparse.SUPPRESS, help=about)
    add_flags(serve, ServerConfig, defaults=settings)
    about = "many verifiers behind one address, by Ray on this machine or on many"
    does = "Serve one model by many verifiers until SIGTERM or SIGINT."
    cluster = commands.add_parser("cluster", help=about, description=does)
    cluster.add_argument("--config", type=path_flag, default=argparse.SUPPRESS, help="as of serve")
    add_flags(cluster, ClusterSettings)
    add_flags(cluster, Scaling, without=("min", "max"))
    add_flags(cluster, ServerConfig, defaults={"drain_s": DRAIN_S, **(settings or {})})
    keygen = commands.add_parser("keygen", help="make CURVE keys for the server and a robot")
    keygen.add_argument("--keys", type=path_flag, help="folder to make them in; made where there is none")
    about = "add an API key of --client to this file, for the OpenAI chat API; with --keys its CURVE keys too"
    keygen.add_argument("--api-keys", type=path_flag, help=about)
    what = keygen.add_mutually_exclusive_group()
    about = "name of the robot, or of who asks by the chat API (default: client)"
    what.add_argument("--client", default="client", help=about)
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
    program_exit.release_signals()
    show(urls, interval_s, once)


def keygen(keys: Path | None, api_keys: Path | None, client: str, next_server: bool, switch_server: bool) -> None:
    """Make keys, or put the server's next one in its place, and print what was made. Raises StartError."""
    from cloud_verifier.openai_api.keys import add_key
    from cloud_verifier.security import has_keys, make_keys, make_next_key, purpose, switch_keys

    renews = next_server or switch_server
    if (keys is None and api_keys is None) or (renews and (keys is None or api_keys is not None)):
        raise StartError("give --keys, the folder of CURVE keys, or --api-keys, a file of API keys for --client")
    made: list[Path] = []
    if keys is not None and renews:
        made = make_next_key(keys) if next_server else switch_keys(keys)
    elif keys is not None and not (api_keys is not None and has_keys(keys, client)):
        made = make_keys(keys, client)
    for path in made:
        speaks = api_keys is not None and path.name.startswith(f"{client}.key_secret")
        print(f"{path}: " + (f"by which the chat API speaks for {client}; it stays here" if speaks else purpose(path)))
    if api_keys is not None:
        print(f"{add_key(api_keys, client)}: the API key of {client}; {api_keys} lets it in")


def serve_cluster(options: dict[str, Any]) -> None:
    """Serve one model by many verifiers until SIGTERM or SIGINT. Raises ValueError, in one sentence, if it cannot."""
    settings = from_flags(ClusterSettings, options)
    given = {name: options[name] for name in _names(ServerConfig)}
    config = ServerConfig.of(**{**given, "device": settings.device(options["device"])})
    scaling = from_flags(Scaling, {name: options[name] for name in _names(Scaling) - {"min", "max"}})
    prepare_process(config.model)
    config.check_folders()  # so that a wrong setting is one sentence and not one a replica
    from cloud_verifier.cluster.on_ray import serve

    serve(config, settings, scaling)


def _names(struct: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in fields_of(struct)}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line; what its flags leave out is as in its settings file, if it names one.

    Raises StartError for a file that cannot be used. A wrong command line ends the process, as argparse does.
    """
    files = CommandLine(prog="cloud_verifier", add_help=False, allow_abbrev=False)
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
        start_logging(options.get("log_file"), options.get("log_format", "text"))
        if command == "top":
            watch(**options)
        elif command == "keygen":
            keygen(**options)
        elif command == "cluster":
            serve_cluster(options)
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
