"""ServerConfig: everything that `serve` can be told, checked before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cloud_verifier.exit_queue import QueuePolicy
from cloud_verifier.ledger import PASS_PRICE
from cloud_verifier.scheduler import HINT_TOKENS
from speculation.vlm.folder import SEEING, ModelFolderError, find_model, read_config
from speculation.vlm.settings import ModelSettings
from speculation.wire import MAX_DRAFT_TOKENS

EXITS_FILE = "exits.json"
SHORT_LISTS = ("auto", "off")


class StartError(ValueError):
    """Why the verifier does not start, in one sentence for the person who started it."""


@dataclass(frozen=True)
class ServerConfig:
    """The verifier's settings; the command line takes its defaults from here. Raises StartError, naming the flag."""

    model: Path
    bind: str = "tcp://127.0.0.1:5555"
    exits: Path | None = None
    """Folder of the exit heads; None looks in the model folder, then beside it in `exits`."""
    draft_model: Path | None = None
    """A draft model beside the target, for steps in mode `server_sd`; loaded as the target is."""
    short_list: str = "auto"
    """`auto`: exits read their tokens off the short list of their folder where it has one; `off`: off the full head."""
    profile: str = "raw"
    threads: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    attention: str = "sdpa"
    quantisation: str = "none"
    min_pixels: int = 0
    max_pixels: int = 0
    """Bounds of the resized frame; 0 keeps the model's own."""
    text_only: bool = False
    """Target and draft model are language models alone, asked without frames: for benchmarks, never for a robot."""
    allow_download: bool = False
    max_sessions: int = 8
    max_batch: int = 8
    max_draft: int = MAX_DRAFT_TOKENS
    """Tokens that one Draft may carry."""
    capacity: int = 1024
    """Cache slots per session: image and prompt, answer and draft must fit."""
    keys: Path | None = None
    allow_plain: bool = False
    trace: Path | None = None
    log_file: Path | None = None
    queue_policy: QueuePolicy = QueuePolicy.PRIORITY
    early_rate: float = 200.0
    """Early tokens per second and session. One is about 20 bytes of payload: 200 are 32 kbit/s, 100 with headers."""
    early_burst: int = 4
    """Early tokens that may leave at once: a forward's worth of exits."""
    collect_s: float = 0.0
    """How long a ready session waits for others to share its forward."""
    pass_price: float = PASS_PRICE
    """Tokens that one more target forward must bring before an idle step decodes alone instead of waiting."""
    hint_tokens: int = HINT_TOKENS
    """Tokens that are verified at once of an earlier answer, where no draft is at hand."""
    idle_s: float = 60.0
    """A session that neither says nor gets anything for so long is closed."""
    seed: int = 0
    """For queue policy `random`."""

    def __post_init__(self) -> None:
        limits = {
            "threads": (self.threads, 1, 1024),
            "max_sessions": (self.max_sessions, 1, 256),
            "max_batch": (self.max_batch, 1, 256),
            "max_draft": (self.max_draft, 1, MAX_DRAFT_TOKENS),
            "capacity": (self.capacity, 2 * MAX_DRAFT_TOKENS, 1 << 20),
            "early_rate": (self.early_rate, 0.1, 1e6),
            "early_burst": (self.early_burst, 1, 1024),
            "collect_s": (self.collect_s, 0.0, 1.0),
            "pass_price": (self.pass_price, 0.0, 1.0),
            "hint_tokens": (self.hint_tokens, 0, MAX_DRAFT_TOKENS),
            "idle_s": (self.idle_s, 1.0, 86400.0),
        }
        for name, (value, least, most) in limits.items():
            if not (math.isfinite(value) and least <= value <= most):
                raise StartError(f"--{name.replace('_', '-')} {value} is outside {least} to {most}")
        if self.short_list not in SHORT_LISTS:
            raise StartError(f"--short-list {self.short_list!r} is none of {', '.join(SHORT_LISTS)}")
        if not self.settings.rounding.is_exact:
            raise StartError(
                f"--quantisation {self.quantisation} rounds a token by what else is in the forward, so drafts cannot "
                "be verified exactly; choose nf4 or int8_weight_only"
            )

    @property
    def settings(self) -> ModelSettings:
        """How the target is loaded. Raises StartError, naming the setting."""
        try:
            return ModelSettings(
                self.device, self.dtype, self.threads, self.attention, self.quantisation,  # type: ignore[arg-type]
                self.min_pixels,
                self.max_pixels, self.allow_download,
            )  # fmt: skip
        except ValueError as error:
            raise StartError(str(error)) from None

    @property
    def model_folder(self) -> Path:
        """The folder that `model`, a path or a hub name, means. Raises StartError where it holds no usable target."""
        return self._folder("--model", self.model)

    @property
    def draft_folder(self) -> Path | None:
        """The folder that `draft_model` means, None where none is asked for. Raises StartError as `model_folder`."""
        return self._folder("--draft-model", self.draft_model) if self.draft_model is not None else None

    def _folder(self, flag: str, name: Path) -> Path:
        folder = self._found(flag, name)
        if not folder.is_dir():
            raise StartError(f"{flag} {name}: no such folder")
        if not (folder / "config.json").is_file():
            raise StartError(f"{flag} {name}: holds no model (config.json is missing)")
        sees = read_config(folder)["model_type"] in SEEING
        if not sees and not self.text_only:
            raise StartError(
                f"{flag} {name}: a language model alone sees no camera; serve {' or '.join(SEEING)}, or say "
                "--text-only if nobody will send a frame"
            )
        if sees and self.text_only:
            raise StartError(f"{flag} {name}: it sees images, --text-only serves a language model alone; leave it out")
        return folder

    def _found(self, flag: str, name: Path) -> Path:
        try:
            return find_model(name, allow_download=self.allow_download)
        except ModelFolderError as error:
            raise StartError(f"{flag} {name}: {error}") from None

    def check_exits(self) -> None:
        """Raise StartError where `exits` names a folder without exit heads."""
        if self.exits is not None and not (self.exits / EXITS_FILE).is_file():
            raise StartError(f"--exits {self.exits}: holds no exit heads ({EXITS_FILE} is missing)")

    @property
    def exits_folder(self) -> Path | None:
        """The folder of the exit heads, None where there is none. Raises StartError for a name that means no folder."""
        if self.exits is not None:
            return self.exits
        model = self._found("--model", self.model)
        folders = (model, model.parent / "exits")
        return next((folder for folder in folders if (folder / EXITS_FILE).is_file()), None)
