"""`python -m cloud_verifier.openai_api SETTINGS`: started by `cloud_verifier.openai_api.process`, not by hand."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from cloud_verifier.frontend.messages import given_settings
from cloud_verifier.logs import start_logging
from cloud_verifier.openai_api.keys import ApiKeys
from cloud_verifier.openai_api.process import ApiSettings, accepted
from cloud_verifier.openai_api.questions import Questions
from cloud_verifier.openai_api.server import ChatServer
from cloud_verifier.openai_api.verifier_sessions import Home, VerifierSessions
from speculation.vlm.folder import model_name


async def serve(settings: ApiSettings) -> None:
    """Serve connections until there are no more. Raises ValueError, in one sentence, where it cannot."""
    config, link, limits = settings.config, settings.config.link, settings.config.limits
    assert config.chat_api.api_keys is not None, "there is no chat API without keys"
    keys = ApiKeys(config.chat_api.api_keys, link.keys)
    questions = Questions(config.target.model, limits.capacity, limits.max_draft)
    home = Home(settings.address, link.keys, link.allow_plain, questions.tokenizer, questions.vocabulary)
    sessions = VerifierSessions(home, config.chat_api.api_sessions, config.quotas.sessions_per_client)
    await ChatServer(model_name(config.target.model), keys, questions, sessions).run(accepted(settings.connections))


def main() -> int:
    """Run the process with the settings of the one argument, JSON of `ApiSettings`. Returns the exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # its parent ends it, by closing the socket pair
        signal.signal(signum, signal.SIG_IGN)
    settings = given_settings(ApiSettings)
    start_logging(None, settings.config.monitoring.log_format)
    # It has a traceback for all that is no HTTP, which anybody may send; faults of requests are the server's own lines.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        asyncio.run(serve(settings))
    except ValueError as error:
        print(f"cloud_verifier: {error}", file=sys.stderr)
        return 2
    return 0


sys.exit(main())
