"""`python -m cloud_verifier.openai_api SETTINGS`: started by `cloud_verifier.openai_api.process`, not by hand."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import msgspec

from cloud_verifier.logs import start_logging
from cloud_verifier.openai_api.keys import ApiKeys
from cloud_verifier.openai_api.process import ApiSettings, accepted
from cloud_verifier.openai_api.questions import Questions
from cloud_verifier.openai_api.server import ChatServer
from cloud_verifier.openai_api.verifier_sessions import Home, VerifierSessions


async def serve(settings: ApiSettings) -> None:
    """Serve connections until there are no more. Raises ValueError, in one sentence, where it cannot."""
    folder = Path(settings.keys) if settings.keys is not None else None
    keys = ApiKeys(Path(settings.api_keys), folder)
    questions = Questions(Path(settings.folder), settings.capacity, settings.max_draft)
    home = Home(settings.address, folder, settings.allow_plain, questions.tokenizer, questions.vocabulary)
    sessions = VerifierSessions(home, settings.sessions, settings.per_client)
    await ChatServer(settings.model, keys, questions, sessions).run(accepted(settings.connections))


def main() -> int:
    """Run the process with the settings of the one argument, JSON of `ApiSettings`. Returns the exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # its parent ends it, by closing the socket pair
        signal.signal(signum, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.argv[1], type=ApiSettings)
    start_logging(None, settings.log_format)
    # It has a traceback for all that is no HTTP, which anybody may send; faults of requests are the server's own lines.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        asyncio.run(serve(settings))
    except ValueError as error:
        print(f"cloud_verifier: {error}", file=sys.stderr)
        return 2
    return 0


sys.exit(main())
