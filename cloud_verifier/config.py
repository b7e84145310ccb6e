"""Declares the verifier's settings, which are checked before anything is loaded and make the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from cloud_verifier.exit_queue import QueuePolicy
from cloud_verifier.ledger import PASS_PRICE
from cloud_verifier.policies import POLICIES
from cloud_verifier.start_error import StartError as StartError
from cloud_verifier.step import FORCED_TOKENS, HINT_TOKENS
from speculation.address import is_loopback
from speculation.predictor import OFF
from speculation.settings import fields_of, from_flags, read_values
from speculation.vlm.families import family_of, seeing
from speculation.vlm.folder import GGUF, ModelFolderError, find_model, read_config
from speculation.vlm.settings import ModelSettings
from speculation.wire import MAX_DRAFT_TOKENS, MAX_FRAMES

EXITS_FILE, FED_HEAD_FILE = "exits.json", "fed_head.json"
Count = Annotated[int, Meta(ge=1, le=1024)]
Rows = Annotated[int, Meta(ge=1, le=256)]
DraftSize = Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)]
WithinAnHour = Annotated[float, Meta(ge=0.0, le=3600.0)]
CollectSeconds = Annotated[float, Meta(ge=0.0, le=1.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[KMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Settings(msgspec.Struct, frozen=True):
    """Checks its values when it is made. Raises StartError, naming the flag and its limit."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            problem = field.problem(getattr(self, field.name))
            if problem:
                raise StartError(f"{field.flag} {problem}")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings that a YAML or JSON file names, by their own names or their flags'.

    Raises StartError, naming the file and the setting, for one that is unknown, of another type or outside its limits.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_repeated(yaml.compose(text, yaml.SafeLoader))
        held = yaml.safe_load(text)
        return read_values(ServerConfig, held if held is not None else {})
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--config {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise StartError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise StartError(f"--config {path}: {error}") from None


def _refuse_repeated(node: yaml.Node | None) -> None:
    """Raise ValueError, naming the line, for a name that stands twice: `yaml.safe_load` takes the last one."""
    names: list[Any] = []
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in names:
            line = key.start_mark.line + 1
            raise ValueError(f"{key.value!r} stands there twice, again in line {line}; leave one of them out")
        names.append(key.value)


class Target(Settings, frozen=True):
    """Names what is served."""

    model: Annotated[Path, Meta(description="folder of a model (families: docs/models.md), or its name on the hub")]
    exits: Annotated[
        Path | None, Meta(description="folder of exit heads; default: the model's folder, or `exits` beside it")
    ] = None
    fed_head: Annotated[
        Path | None,
        Meta(
            description="folder of a fed head, for robots that draft from the target's features; default: the model's "
            "folder, or `fed_head` beside it"
        ),
    ] = None
    pass_cost: Annotated[
        Path | None,
        Meta(description="file of profile-verifier: what passes cost; default: the model's own, where it has one"),
    ] = None
    draft_model: Annotated[
        Path | None,
        Meta(description="a draft model beside the target: for mode server_sd, and mode full where it is faster"),
    ] = None
    text_only: Annotated[
        bool, Meta(description="serve a language model alone, to edges that send no frames (benchmarks)")
    ] = False
    cuda_graphs: Annotated[
        Literal["on", "off"],
        Meta(
            description="on: a GPU runs small passes as captured CUDA graphs; off: it starts their kernels one by one"
        ),
    ] = "on"
    profile: Annotated[
        str, Meta(description="device profile of config/profiles.json, whose target time is waited for")
    ] = "raw"


class Limits(Settings, frozen=True):
    """Limits what the verifier takes on."""

    max_sessions: Annotated[Count, Meta(description="robots at once; not all need to fit --memory")] = 8
    max_draft: Annotated[int, Meta(ge=1, le=MAX_DRAFT_TOKENS, description="tokens in one draft")] = MAX_DRAFT_TOKENS
    capacity: Annotated[
        int,
        Meta(
            ge=2 * MAX_DRAFT_TOKENS,
            le=1 << 20,
            description="cache slots of a session: image and prompt, answer and draft must fit",
        ),
    ] = 1024
    memory: Annotated[
        str | None,
        Meta(
            description="for keys and values of all sessions and models, such as 2GB; default: what the sessions can "
            "fill, as far as it is free"
        ),
    ] = None
    frames: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_FRAMES,
            description=f"frames that a question may hold; 0: {MAX_FRAMES}, but 1 for a model with a list of objects, "
            "which was trained on one",
        ),
    ] = 0
    idle_s: Annotated[
        float, Meta(ge=1.0, le=86400.0, description="seconds of silence after which a session is closed")
    ] = 60.0
    drain_s: Annotated[
        WithinAnHour,
        Meta(
            description="seconds that SIGTERM lets answers end; then, and between two answers, robots are sent to the "
            "next verifier of their list; 0: they are left at once"
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.memory is not None and not self.memory_bytes:
            raise StartError(f"--memory {self.memory!r} is no size such as 2GB or 512MB")

    @property
    def memory_bytes(self) -> int | None:
        """Return what `memory` means, 0 where it means nothing; None: it is not given."""
        if self.memory is None:
            return None
        size = _SIZE.fullmatch(self.memory.strip())
        return int(float(size["number"]) * _UNITS[size["unit"].upper()]) if size is not None else 0


class Scheduling(Settings, frozen=True):
    """Decides what runs next."""

    policy: Annotated[str, Meta(description=f"which steps share a forward: {', '.join(POLICIES)}")] = "fcfs"
    max_batch: Annotated[
        Rows | None, Meta(description="robots in one forward; default: as many as raise the predicted tokens/s")
    ] = None
    collect_s: Annotated[
        CollectSeconds | None,
        Meta(
            description="seconds that a ready session waits for others to share its forward; default: as long as "
            "predicted times make it pay"
        ),
    ] = None
    guard_s: Annotated[
        float,
        Meta(ge=0.0, le=10.0, description="wisp: seconds before its latest start from which on a session is critical"),
    ] = 0.01
    patience_s: Annotated[
        WithinAnHour,
        Meta(
            description="sessions that wait for longer than so many seconds go first, a quarter of a forward at most "
            "(wisp, full_budget), and prompts whatever else is due"
        ),
    ] = 2.0
    prefill_chunk: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="prompt tokens in one forward, at most: deadlines of wisp and full_budget may leave fewer; "
            "0: as many as at most double a forward while robots are being answered",
        ),
    ] = 0
    pass_price: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="tokens that a target forward must bring before an idle step does not wait"),
    ] = PASS_PRICE
    hint_tokens: Annotated[
        DraftSize, Meta(description="tokens of an earlier answer that are verified at once where no draft is at hand")
    ] = HINT_TOKENS
    forced_tokens: Annotated[
        DraftSize,
        Meta(
            description="tokens that are verified with a draft, at most, because an answer's grammar leaves no other "
            "text; 0: none, and an answer's end takes a pass, too"
        ),
    ] = FORCED_TOKENS

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.policy not in POLICIES:
            raise StartError(f"--policy {self.policy!r} is none of {', '.join(POLICIES)}")


class Early(Settings, frozen=True):
    """Decides how early tokens leave: 200 a second, of about 20 bytes each, are 32 kbit/s, 100 with headers."""

    queue_policy: Annotated[QueuePolicy, Meta(description="which early token leaves first")] = QueuePolicy.PRIORITY
    early_rate: Annotated[float, Meta(ge=0.1, le=1e6, description="early tokens per second and session")] = 200.0
    early_burst: Annotated[
        Count, Meta(description="early tokens of a session that may leave at once: a forward's exits")
    ] = 4


class Link(Settings, frozen=True):
    """These settings are where the verifier is reached."""

    bind: Annotated[str, Meta(description="address, tcp://HOST:PORT; port * takes a free one")] = "tcp://127.0.0.1:5555"
    keys: Annotated[
        Path | None,
        Meta(description="folder of CURVE keys; encrypts, and only robots with a key may connect"),
    ] = None
    allow_plain: Annotated[bool, Meta(description="allow a public address without keys")] = False


class Quotas(Settings, frozen=True):
    """Limits what one client, the robots that have one key, may use; without keys, what one connection may."""

    sessions_per_client: Annotated[
        Count, Meta(description="sessions of one key at once; without --keys there is no such limit")
    ] = 4
    steps_per_s: Annotated[
        float, Meta(ge=0.0, le=1e6, description="steps that a client may begin a second, in the mean; 0: any number")
    ] = 0.0
    bytes_per_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1e12,
            description="bytes that a client may send a second, in the mean; who sends much more is hung up on; 0: any",
        ),
    ] = 8e6
    draft_tokens_per_s: Annotated[
        float, Meta(ge=0.0, le=1e9, description="draft tokens that a client may send a second; 0: any number")
    ] = 0.0


class Monitoring(Settings, frozen=True):
    """These settings are what the verifier shows and writes of what it does."""

    http: Annotated[
        Port | None,
        Meta(description="port of /metrics, /health, /ready, /load and /version; 0: a free one; default: none"),
    ] = None
    http_bind: Annotated[
        str, Meta(description="address of these pages; they have no password: leave it in your own network")
    ] = "127.0.0.1"
    hang_s: Annotated[
        float,
        Meta(
            ge=1.0,
            le=3600.0,
            description="seconds without a sign of the engine after which /health answers 503, and robots are not "
            "told any more that it works",
        ),
    ] = 60.0
    trace: Annotated[Path | None, Meta(description="write a Chrome/Perfetto trace here at the end")] = None
    log_file: Annotated[Path | None, Meta(description="log here instead of to stderr; six files of 10 MB at most")] = (
        None
    )
    log_format: Annotated[
        Literal["text", "json"], Meta(description="lines for people, or a JSON object a line for machines")
    ] = "text"

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if not self.http_bind.strip("[]"):  # a socket would take it for all addresses
            raise StartError("--http-bind is empty; give an address, or leave it out for this machine alone")


class ChatApi(Settings, frozen=True):
    """These settings are of the OpenAI chat API beside the pages of `--http`."""

    api_keys: Annotated[
        Path | None,
        Meta(
            description="file of API keys, a line of NAME KEY each: the port of --http serves the OpenAI chat API at "
            "/v1 to whoever has one; default: it does not"
        ),
    ] = None
    api_sessions: Annotated[
        Count,
        Meta(description="chat requests that are answered at once, by so many of --max-sessions; further ones wait"),
    ] = 4


class ServerConfig(msgspec.Struct, frozen=True):
    """The configuration has all settings. Raises StartError for a chat API that cannot be served beside the robots."""

    target: Target
    model: ModelSettings = ModelSettings()
    """It says how target and draft model are loaded."""
    limits: Limits = Limits()
    scheduling: Scheduling = Scheduling()
    early: Early = Early()
    link: Link = Link()
    quotas: Quotas = Quotas()
    monitoring: Monitoring = Monitoring()
    chat_api: ChatApi = ChatApi()

    def __post_init__(self) -> None:
        api, pages = self.chat_api, self.monitoring
        if api.api_keys is None:
            return
        if pages.http is None:
            raise StartError(f"--api-keys {api.api_keys}: give --http PORT too, where the chat API is served")
        if api.api_sessions >= self.limits.max_sessions:
            raise StartError(
                f"--api-sessions {api.api_sessions} leaves robots none of --max-sessions {self.limits.max_sessions}; "
                "raise that"
            )
        if not (is_loopback(pages.http_bind) or self.link.allow_plain):
            raise StartError(
                f"--http-bind {pages.http_bind}: API keys and pictures would go there in plain text; leave it on "
                "loopback behind a proxy that speaks TLS, or give --allow-plain on a network that you trust"
            )

    @classmethod
    def of(cls, model: Path, **settings: Any) -> ServerConfig:
        """Return the settings with these values, by their own names. Raises StartError; TypeError for another name."""
        fields = {field.name: field for field in fields_of(cls)}
        unknown = [name for name in settings if name not in fields]
        if unknown:
            raise TypeError(f"the verifier has no setting {', '.join(unknown)}")
        try:
            return from_flags(cls, {"model": model, **settings})
        except StartError:
            raise
        except ValueError as error:
            name, _, problem = str(error).partition(" ")
            raise StartError(f"{fields[name].flag} {problem}" if name in fields else str(error)) from None

    def changed(self, **settings: Any) -> ServerConfig:
        """Return these settings with other values, by their own names. Raises as `of`."""
        return self.of(**{**self._values, **settings})

    def with_full_paths(self) -> ServerConfig:
        """Return these settings for a process that works in another folder.

        What does not exist here, as a model that Hugging Face knows by name, stays.
        """
        paths = {name: value for name, value in self._values.items() if isinstance(value, Path) and value.exists()}
        return self.changed(**{name: path.absolute() for name, path in paths.items()})

    @property
    def _values(self) -> dict[str, Any]:
        return {name: getattr(part, name) for part in msgspec.structs.astuple(self) for name in part.__struct_fields__}

    @property
    def model_folder(self) -> Path:
        """Return the folder that `model`, a path or a hub name, means. Raises StartError for one without a target."""
        return self._folder("--model", self.target.model)

    @property
    def draft_folder(self) -> Path | None:
        """Return the folder that `draft_model` means, None where none is asked for. Raises as `model_folder`."""
        draft = self.target.draft_model
        return self._folder("--draft-model", draft) if draft is not None else None

    def _folder(self, flag: str, name: Path) -> Path:
        if str(name).lower().endswith(GGUF):
            raise StartError(
                f"{flag} {name}: GGUF files draft on a robot and serve nowhere else; give a model's folder"
            )
        folder = self._found(flag, name)
        if not folder.is_dir():
            raise StartError(f"{flag} {name}: no such folder")
        if not (folder / "config.json").is_file():
            raise StartError(f"{flag} {name}: holds no model (config.json is missing)")
        sees = family_of(read_config(folder)["model_type"]).sees_images
        if not sees and not self.target.text_only:
            raise StartError(
                f"{flag} {name}: a language model alone sees no camera; serve {' or '.join(seeing())}, or add "
                "--text-only if no frames will be sent"
            )
        if sees and self.target.text_only:
            raise StartError(f"{flag} {name}: it sees images, --text-only serves a language model alone; leave it out")
        return folder

    def _found(self, flag: str, name: Path) -> Path:
        try:
            return find_model(name, allow_download=self.model.allow_download)
        except ModelFolderError as error:
            raise StartError(f"{flag} {name}: {error}") from None

    @property
    def exits_folder(self) -> Path | None:
        """Return the folder of the exit heads, None where there is none. Raises StartError for one that holds none."""
        return self._heads_folder("--exits", self.target.exits, EXITS_FILE, "exit heads", "exits")

    @property
    def fed_head_folder(self) -> Path | None:
        """Return the folder of the fed head, None where there is none. Raises StartError for one that holds none."""
        if str(self.target.fed_head) == OFF:
            return None
        return self._heads_folder("--fed-head", self.target.fed_head, FED_HEAD_FILE, "fed head", "fed_head")

    def _heads_folder(self, flag: str, asked: Path | None, file: str, what: str, beside: str) -> Path | None:
        if asked is None:
            model = self._found("--model", self.target.model)
            folders = (model, model.parent / beside)
            return next((folder for folder in folders if (folder / file).is_file()), None)
        if not (asked / file).is_file():
            raise StartError(f"{flag} {asked}: holds no {what} ({file} is missing)")
        return asked

    def check_folders(self) -> None:
        """Raise StartError where a folder that was named holds nothing usable."""
        _ = self.model_folder, self.draft_folder, self.exits_folder, self.fed_head_folder
