"""llama.cpp as a draft engine: a GGUF file grows the token tree, with a vision tower (mmproj) or without.

A token tree is a set of llama.cpp's sequences over one shared cache. Sequence 0 holds the committed tokens; every leaf
has a sequence of its own, and a node's cell belongs to those of all leaves below it, so that a token sees its ancestors
and nothing else. Branching and re-rooting mark cells, no keys or values are copied. A draft is a hint: how an engine
rounds changes its speed and acceptance, never an answer.

Needs the extra `llama-cpp`; everything that touches the library is in this file.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speculation.acceptance import check_parents, check_path, descendants
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.frames import Frame, decode_frames
from speculation.optional_packages import need
from speculation.vlm.cache import CacheFull
from speculation.vlm.families.qwen_vl import QwenFrames
from speculation.vlm.folder import GgufFiles, ModelFolderError, gguf_fingerprint, tokenizer_fingerprint
from speculation.vlm.gguf_file import check_eyes, check_language_model, read_metadata
from speculation.vlm.gguf_tokenizer import gguf_processor
from speculation.vlm.positions import Ints
from speculation.vlm.processing import MERGE, PATCH, Processor
from speculation.vlm.settings import ModelSettings
from speculation.wire import MAX_END_TOKENS, ROOT, Jpegs, Thinking

_log = logging.getLogger(__name__)
EXTRA = "llama-cpp"
SEQUENCES = 256
"""The library's own limit: a tree has one leaf less."""
BATCH = SEQUENCES
"""Tokens that the library computes at once; more are cut. It keeps room for the logits of SEQUENCES tokens, no more."""
TRUNK = 0
"""The sequence of the committed tokens."""
LOOK_S = 0.001
"""How often a forward under way asks whether it is still wanted: the library would ask at each of its operations."""
_ABORTED, _ERROR = 2, 3
"""What llama_decode returns for a forward that was given up; the library's level of errors in its log."""
_ALL_LAYERS = 10_000


class _Held(NamedTuple):
    """A part of the committed tokens that is in the cache: a token, or an image as a whole."""

    key: int | bytes
    """The token, or the digest of the image."""
    position: int
    cells: int = 1


@dataclass(frozen=True)
class _Node:
    """A token behind the root that was fed."""

    token: int
    parent: int
    sequence: int
    """One of those that its cell belongs to."""
    position: int
    logits: Logits = field(repr=False)

    @property
    def place(self) -> tuple[int, int]:
        """A sequence that ends with it, and the position behind it."""
        return self.sequence, self.position + 1


class _Entry(NamedTuple):
    """One token of a batch."""

    token: int
    position: int
    sequences: Sequence[int]
    has_logits: bool


@cache
def _library() -> Any:
    """Return the bindings, started and quiet. Raises ValueError where they are not installed or do not load."""
    try:
        need(EXTRA, "llama_cpp")
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ValueError(f"a GGUF draft model needs llama.cpp: {error}") from None
    llama_cpp.llama_log_set(_log_callback(llama_cpp), None)
    llama_cpp.llama_backend_init()
    return llama_cpp


@cache
def _eyes_library() -> Any:
    """Return the bindings of the part that reads images. Raises ValueError where the build has none."""
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, FileNotFoundError) as error:
        raise ValueError(f"this llama-cpp-python was built without mtmd, which reads images: {error}") from None
    mtmd_cpp.mtmd_log_set(_log_callback(_library()), None)
    mtmd_cpp.mtmd_helper_log_set(_log_callback(_library()), None)
    return mtmd_cpp


_complaints: deque[str] = deque(maxlen=8)
"""What the library logged as errors since it was last asked for something that may fail."""


@cache
def _log_callback(library: Any) -> Any:
    """Return what turns the library's log into ours, where its details are for debugging."""

    def log(level: int, text: bytes, _: Any) -> None:
        words = text.decode(errors="replace").strip()
        if words:
            _log.debug("%s", words)
            if level == _ERROR:
                _complaints.append(words)

    return library.llama_log_callback(log)


def _reason() -> str:
    return f" ({_complaints[0]})" if _complaints else ""


class LlamaCppModel:
    """A GGUF file's weights, its eyes where it has any, and what belongs to them. Holds no state of a step."""

    repetition_penalty = 1.0
    """Is no penalty: a GGUF file asks for none."""

    def __init__(self, files: GgufFiles, settings: ModelSettings) -> None:
        """Load the files. Weights stay as the file has them; keys, values and attention are in 16 bits where
        `settings.dtype` is of 16 bits, else in float32.

        Raises ModelFolderError for files that are no such model, ValueError for settings that the library has not, or
        where it is not installed.
        """
        _check(settings)
        metadata = read_metadata(files.weights)
        check_language_model(files.weights, metadata)
        self.files, self.settings = files, settings
        self.name, self.folder = files.weights.name, files.weights.parent
        """The name of its file, and the folder, in which what belongs to the model lies, too."""
        self.device = settings.devices[0]
        """Names the device that the layers are on."""
        self.processor: Processor = gguf_processor(files.weights, metadata)
        self.tokenizer: Any = self.processor.tokenizer
        """The tokenizer of the file, or of its folder."""
        self.vocabulary = len(self.tokenizer)
        """Is the number of tokens to which logits are cut."""
        self.fingerprint = gguf_fingerprint(files)
        self.tokenizer_fingerprint = tokenizer_fingerprint(self.processor.tokenizer)
        library = self.library = _library()
        self._check_device()
        self.pointer = self._load()
        weakref.finalize(self, library.llama_model_free, self.pointer)
        self.num_layers = int(library.llama_model_n_layer(self.pointer))
        """Decoder layers."""
        self.context = int(library.llama_model_n_ctx_train(self.pointer))
        """Most tokens of prompt and answer that the model was made for."""
        self.weight_bytes = int(library.llama_model_size(self.pointer))
        """Bytes of the language model's weights."""
        if library.llama_model_is_recurrent(self.pointer) or library.llama_model_is_hybrid(self.pointer):
            raise ModelFolderError(
                f"{files.weights} has recurrent layers, which cannot grow a token tree; take another"
            )
        self._words = library.llama_model_get_vocab(self.pointer)
        self.eos = self._end_tokens()
        self.eyes = _Eyes(self, files.eyes) if files.eyes is not None else None
        self.sees_images = self.eyes is not None
        """Whether a vision tower came with the model."""
        if self.sees_images:
            self.processor = replace(self.processor, frames=QwenFrames.of())

    @property
    def thinking(self) -> Thinking | None:
        """How the model thinks before it answers, by its chat template; None: it does not."""
        return self.processor.thinking

    def words(self, prompt: str) -> Ints:
        """Return the tokens of the chat around a prompt, without images. Raises ValueError for one it cannot take."""
        return self.processor.encode_text(prompt)

    def encode(self, prompt: str, image: Jpegs) -> list[int | Frame]:
        """Return the tokens of the chat around a prompt, with frames where they stand, if it has a vision tower.

        Raises ValueError for a prompt or image that cannot be used.
        """
        if self.eyes is None:
            return list(self.words(prompt).tolist())
        frames = decode_frames(image)
        ids = self.processor.encode_text(prompt, [QwenFrames.place] * len(frames)).tolist()
        place = self.processor.image_token
        left = iter(frames)
        return [next(left) if token == place else token for token in ids]

    def _load(self) -> Any:
        library, device = self.library, self.device
        how = library.llama_model_default_params()
        how.n_gpu_layers = _ALL_LAYERS if device.startswith("cuda") else 0
        how.main_gpu = int(device.partition(":")[2] or 0)
        how.split_mode = library.LLAMA_SPLIT_MODE_NONE
        _complaints.clear()
        pointer = library.llama_model_load_from_file(str(self.files.weights).encode(), how)
        if not pointer:
            raise ModelFolderError(
                f"{self.files.weights} cannot be loaded{_reason()}; where the model is newer than the installed "
                "llama-cpp-python update that, else fetch the file again"
            )
        return pointer

    def _check_device(self) -> None:
        if self.device.startswith("cuda") and not self.library.llama_supports_gpu_offload():
            raise ValueError(
                f"device {self.device}: this llama-cpp-python was built without a GPU; build it with "
                "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir llama-cpp-python, or take cpu"
            )

    def _end_tokens(self) -> tuple[int, ...]:
        library, added = self.library, sorted(self.tokenizer.get_added_vocab().values())
        ends = [token for token in added if library.llama_vocab_is_eog(self._words, token)]
        if not 1 <= len(ends) <= MAX_END_TOKENS:
            raise ModelFolderError(
                f"{self.files.weights} names {len(ends)} tokens that end an answer, it takes 1 to {MAX_END_TOKENS}; "
                "convert it again with tokenizer.ggml.eos_token_id"
            )
        return tuple(ends)


def _is_half(settings: ModelSettings) -> bool:
    return settings.dtype in ("float16", "bfloat16")


def _check(settings: ModelSettings) -> None:
    """Raise ValueError, naming the setting, for what this engine does not do."""
    if settings.quantisation != "none":
        raise ValueError(f"quantisation {settings.quantisation!r}: a GGUF file is rounded already; leave it at none")
    kind = settings.device.partition(":")[0]
    if len(settings.devices) > 1 or kind not in ("cpu", "cuda"):
        raise ValueError(f"device {settings.device!r}: a GGUF draft model runs on cpu, cuda or one of several, cuda:1")


class _Eyes:
    """The vision tower of a Qwen model, out of its mmproj file."""

    def __init__(self, model: LlamaCppModel, path: Path) -> None:
        """Raises ModelFolderError for a file that is no vision tower of this model."""
        metadata = read_metadata(path)
        check_eyes(path, metadata)
        if QwenFrames.place not in model.tokenizer.get_added_vocab():
            raise ModelFolderError(
                f"{path}: eyes are read for models with {QwenFrames.place} in their chat (Qwen2-VL, Qwen2.5-VL, "
                f"Qwen3-VL); give {model.name} alone, which then drafts without seeing"
            )
        self._library = _eyes_library()
        settings, how = model.settings, self._library.mtmd_context_params_default()
        how.use_gpu = model.device.startswith("cuda")
        how.print_timings = False
        if not _is_half(settings):
            how.flash_attn_type = model.library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if settings.threads is not None:
            how.n_threads = settings.threads
        # Bounds of a frame in pixels become bounds of its tokens, each of which is a merged patch.
        unit = (metadata.get("clip.vision.patch_size", PATCH) * MERGE) ** 2
        if settings.min_pixels:
            how.image_min_tokens = math.ceil(settings.min_pixels / unit)
        if settings.max_pixels:
            how.image_max_tokens = max(1, settings.max_pixels // unit)
        _complaints.clear()
        self._pointer = self._library.mtmd_init_from_file(str(path).encode(), model.pointer, how)
        if not self._pointer or not self._library.mtmd_support_vision(self._pointer):
            raise ModelFolderError(
                f"{path} cannot be loaded as the eyes of {model.name}{_reason()}; give the mmproj file of that model"
            )
        weakref.finalize(self, self._library.mtmd_free, self._pointer)

    def read(self, context: Any, frame: Frame, position: int) -> tuple[int, int]:
        """Compute a frame into the trunk of a context, from a position on; return its cells and the position behind.

        Raises ValueError for a frame that cannot be read, CacheFull where it does not fit, Abandoned where the
        context's forward was given up.
        """
        library, height, width = self._library, *frame.shape[:2]
        pixels = np.ascontiguousarray(frame).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap, chunks = library.mtmd_bitmap_init(width, height, pixels), library.mtmd_input_chunks_init()
        try:
            marker = library.mtmd_default_marker()
            text = library.mtmd_input_text(marker, len(marker), False, True)
            given = (library.mtmd_bitmap_p_ctypes * 1)(bitmap)
            if library.mtmd_tokenize(self._pointer, chunks, ctypes.byref(text), given, 1):
                raise ValueError(f"the vision tower cannot read a frame of {width} x {height} pixels")
            each = (library.mtmd_input_chunks_get(chunks, n) for n in range(library.mtmd_input_chunks_size(chunks)))
            (image,) = (
                chunk
                for chunk in each
                if library.mtmd_input_chunk_get_type(chunk) == library.MTMD_INPUT_CHUNK_TYPE_IMAGE
            )
            if library.mtmd_encode_chunk(self._pointer, image):
                raise RuntimeError(f"the vision tower failed{_reason()}")
            behind = ctypes.c_int32()
            outcome = library.mtmd_helper_decode_image_chunk(
                self._pointer, context, image, library.mtmd_get_output_embd(self._pointer), position, TRUNK, BATCH,
                ctypes.byref(behind), library.mtmd_helper_post_decode_callback(0), None,
            )  # fmt: skip
            cells = int(library.mtmd_input_chunk_get_n_tokens(image))
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)
        _check_outcome(outcome, cells)
        return cells, int(behind.value)


def _check_outcome(outcome: int, tokens: int) -> None:
    if outcome == _ABORTED:
        raise Abandoned
    if outcome == 1:
        raise CacheFull(f"the draft model's cache has no room for {tokens} tokens; raise capacity")
    if outcome:
        raise RuntimeError(f"llama.cpp failed with {outcome}{_reason()}")


class LlamaCppSession:
    """A `DraftModel`: one step's committed tokens and its token tree, in a context of the library's.

    Nodes are numbered as in `edge_drafter.protocols.DraftModel`. Committed tokens that are not in the cache yet are
    *pending*; they ride in front of the next forward, and while there are any there are no nodes. What a prompt has in
    common with the one before, equal images included, is not computed again.
    """

    def __init__(self, model: LlamaCppModel, capacity: int, reserved: int = 0) -> None:
        """`capacity`: cells of the cache; `reserved`: those behind a prompt that its answer may need.

        Raises ValueError where the model was made for fewer, or memory is short.
        """
        if capacity > model.context:
            raise ValueError(
                f"capacity is {capacity}, but draft model {model.name} was made for {model.context} tokens; lower it"
            )
        self.model, self._capacity, self._library = model, capacity, model.library
        self._reserved = reserved
        self._context = self._new_context()
        weakref.finalize(self, self._library.llama_free, self._context)
        self._memory = self._library.llama_get_memory(self._context)
        self._batch = self._library.llama_batch_init(BATCH, 0, SEQUENCES)
        weakref.finalize(self, self._library.llama_batch_free, self._batch)
        self._rows = int(self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(model.pointer)))
        self._held: list[_Held] = []
        self._next = 0
        """The position behind what is held."""
        self._pending: list[int] = []
        self._root: Logits | None = None
        self._nodes: list[_Node] = []
        self._free = list(range(SEQUENCES - 1, TRUNK, -1))
        """Sequences that no node is in."""

    @property
    def node_count(self) -> int:
        """How many nodes stand behind the root; the id that the next fed token gets."""
        return len(self._nodes)

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """Start a step.

        Raises as `DraftModel.begin`, CacheFull for a prompt that does not fit, ValueError where its answer does not.
        """
        for token in committed:
            self._check_token(token)
        prompted = self.model.encode(prompt, image)
        wanted = [*prompted, *committed]
        keys = [each if isinstance(each, int) else _digest(each) for each in wanted]
        self._release({node.sequence for node in self._nodes})
        self._nodes, self._pending, self._root = [], [], None
        common = 0
        # The last token is the root, whose logits are not kept.
        while common < min(len(self._held), len(keys) - 1) and self._held[common].key == keys[common]:
            common += 1
        self._cut(common)
        # The prompt's last token, and what is committed behind it, ride in front of the first forward.
        end = max(common, len(prompted) - 1)
        try:
            for is_text, part in groupby(zip(wanted[common:end], keys[common:end], strict=True), _is_text):
                if is_text:
                    self._read_text([int(token) for token, _ in part], stop)
                else:
                    for frame, digest in part:
                        self._look(frame, digest, stop)
        except BaseException:
            self._cut(0)
            raise
        read = sum(each.cells for each in self._held)
        if self._reserved and read + 1 + self._reserved > self._capacity:
            self._cut(0)
            raise ValueError(
                f"frames and prompt of {read + 1} tokens and an answer of {self._reserved} do not fit the "
                f"{self._capacity} cache slots of {self.model.name}; raise capacity, or lower max_tokens"
            )
        self._pending = [int(token) for token in wanted[end:]]

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root [vocabulary]; a forward only while committed tokens are pending.

        Raises RuntimeError before the first `begin`, Abandoned, with nothing changed, where `stop` returns True.
        """
        if self._root is None:
            self._feed([], [], stop)
        assert self._root is not None, "feeding the pending tokens makes the root's logits known"
        return self._root

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed tokens in one forward and return the logits after each [n, vocabulary].

        Raises ValueError for a parent or token that is none, CacheFull where the cache is full or the tree has more
        than SEQUENCES - 1 leaves, Abandoned where `stop` returns True; nothing changes then.
        """
        check_parents(tokens, parents, self.node_count)
        for token in tokens:
            self._check_token(token)
        return self._feed(list(tokens), list(parents), stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Commit the chain `path` and `next_token`; return surviving old node -> new node, as `DraftModel.commit`.

        Raises ValueError, with nothing changed, for a path that is no chain or a token outside the vocabulary.
        """
        self._check_token(next_token)
        nodes, parents = self._nodes, [each.parent for each in self._nodes]
        end = check_path(path, parents)
        root = next((n for n, each in enumerate(nodes) if (each.parent, each.token) == (end, next_token)), None)
        taken = [*path, *([] if root is None else [root])]
        if taken:
            last = nodes[taken[-1]]
            self._library.llama_memory_seq_cp(self._memory, last.sequence, TRUNK, self._next, last.position + 1)
            self._hold([nodes[node].token for node in taken])
        if root is None:
            self._pending.append(next_token)
            self._root, kept, renamed = None, list[int](), dict[int, int]()
        else:
            self._root, kept = nodes[root].logits, descendants(root, parents)
            renamed = {root: ROOT} | {node: index for index, node in enumerate(kept)}
        self._nodes = [replace(nodes[node], parent=renamed[nodes[node].parent]) for node in kept]
        self._release({each.sequence for each in nodes} - {each.sequence for each in self._nodes})
        return renamed

    def _new_context(self) -> Any:
        library, settings = self._library, self.model.settings
        on_gpu = self.model.device.startswith("cuda")
        how = library.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = self._capacity, BATCH, BATCH
        how.n_seq_max = how.n_outputs_max = SEQUENCES
        how.kv_unified = True
        how.offload_kqv = how.op_offload = on_gpu
        if not _is_half(settings):
            how.type_k = how.type_v = library.GGML_TYPE_F32
            # The library's flash attention rounds to 16 bits on a CPU, by the order of a tree's cells.
            how.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if settings.threads is not None:
            how.n_threads = how.n_threads_batch = settings.threads
        _complaints.clear()
        context = library.llama_init_from_model(self.model.pointer, how)
        if not context:
            raise ValueError(
                f"draft model {self.model.name} has no memory for {self._capacity} tokens{_reason()}; lower capacity"
            )
        return context

    def _read_text(self, tokens: Sequence[int], stop: Stop | None) -> None:
        """Compute tokens of the prompt into the cache."""
        self._check_room(len(tokens))
        entries = [_Entry(token, self._next + place, (TRUNK,), False) for place, token in enumerate(tokens)]
        self._run(entries, stop)
        self._hold(tokens)

    def _look(self, frame: Any, digest: Any, stop: Stop | None) -> None:
        """Compute an image of the prompt into the cache."""
        assert self.model.eyes is not None, "a model without a vision tower has no frames"
        with _watched(self._library, self._context, stop):
            cells, behind = self.model.eyes.read(self._context, frame, self._next)
        self._held.append(_Held(digest, self._next, cells))
        self._next = behind
        self._check_room(0)

    def _feed(self, tokens: list[int], parents: list[int], stop: Stop | None) -> Logits:
        if self._root is None and not self._pending:
            raise RuntimeError("the session has no step yet; call begin first")
        waiting, count = self._pending, self.node_count
        if not tokens and not waiting:
            return np.empty((0, self.model.vocabulary), dtype=np.float32)
        self._check_room(len(waiting) + len(tokens))
        root = self._next + len(waiting) - 1
        positions = [each.position for each in self._nodes]
        for parent in parents:
            positions.append(1 + (root if parent == ROOT else positions[parent]))
        sequences, members, made = self._branch(parents)
        everywhere = (TRUNK, *made) if waiting else ()
        entries = [
            _Entry(token, self._next + place, everywhere, place == len(waiting) - 1)
            for place, token in enumerate(waiting)
        ]
        entries += [
            _Entry(token, position, members[node], True)
            for node, (token, position) in enumerate(zip(tokens, positions[count:], strict=True))
        ]
        try:
            rows = self._run(entries, stop)
        except BaseException:
            self._take_back(entries, made)
            raise
        if waiting:
            self._hold(waiting)
            self._pending, self._root = [], rows[0]
            rows = rows[1:]
        fed = zip(tokens, parents, sequences[count:], positions[count:], rows, strict=True)
        self._nodes += [_Node(*each) for each in fed]
        return rows

    def _branch(self, parents: Sequence[int]) -> tuple[list[int], list[list[int]], list[int]]:
        """Make room for new nodes behind `parents` in sequences.

        Returns one sequence of every node, old and new, all sequences of each new node, and the sequences that are
        made for them. Raises CacheFull, with nothing changed, where there are none left.
        """
        count, above = self.node_count, [*(each.parent for each in self._nodes), *parents]
        sequences = [each.sequence for each in self._nodes]
        # Children come behind their parents, so that the last node of a sequence is its leaf.
        leaves = {sequence: node for node, sequence in enumerate(sequences)}
        made: list[int] = []
        for node, parent in enumerate(parents, start=count):
            goes_on = parent != ROOT and leaves[sequences[parent]] == parent
            if not goes_on and len(made) == len(self._free):
                raise CacheFull(
                    f"the draft's tree has {SEQUENCES - 1} leaves, more than llama.cpp takes; lower max_nodes"
                )
            sequence = sequences[parent] if goes_on else self._free[-1 - len(made)]
            if not goes_on:
                made.append(sequence)
            sequences.append(sequence)
            leaves[sequence] = node
        members: list[list[int]] = [[] for _ in parents]
        for sequence in dict.fromkeys(sequences[count:]):
            node = leaves[sequence]
            while node >= count:
                members[node - count].append(sequence)
                node = above[node]
            if sequence in made:
                source, end = (TRUNK, self._next) if node == ROOT else self._nodes[node].place
                self._library.llama_memory_seq_cp(self._memory, source, sequence, 0, end)
        del self._free[len(self._free) - len(made) :]
        return sequences, members, made

    def _take_back(self, entries: Sequence[_Entry], made: Sequence[int]) -> None:
        """Remove what a forward that did not end may have left in the cache."""
        first: dict[int, int] = {}
        for entry in entries:
            for sequence in entry.sequences:
                first[sequence] = min(entry.position, first.get(sequence, entry.position))
        for sequence, position in first.items():
            self._library.llama_memory_seq_rm(self._memory, sequence, position, -1)
        self._release(made)

    def _release(self, sequences: Iterable[int]) -> None:
        """Empty sequences, and with them the cells that are in no other."""
        for sequence in sequences:
            self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            self._free.append(sequence)

    def _hold(self, tokens: Sequence[int]) -> None:
        """Count tokens that are in the cache to the committed ones that are held."""
        self._held += [_Held(token, self._next + place) for place, token in enumerate(tokens)]
        self._next += len(tokens)

    def _cut(self, count: int) -> None:
        """Forget all that is held but the first `count` parts, and whatever stands behind them."""
        if count < len(self._held):
            self._next = self._held[count].position
            del self._held[count:]
        self._library.llama_memory_seq_rm(self._memory, TRUNK, self._next, -1)

    def _run(self, entries: Sequence[_Entry], stop: Stop | None) -> Logits:
        """Compute tokens and return the logits after those that ask for them [n, vocabulary], in their order."""
        rows, library = [], self._library
        for begin in range(0, len(entries), BATCH):
            part = entries[begin : begin + BATCH]
            self._fill(part)
            with _watched(library, self._context, stop):
                _check_outcome(library.llama_decode(self._context, self._batch), len(part))
            for place, entry in enumerate(part):
                if entry.has_logits:
                    row = library.llama_get_logits_ith(self._context, place)
                    # The library's own memory, which the next forward writes.
                    rows.append(np.ctypeslib.as_array(row, (self._rows,))[: self.model.vocabulary].copy())
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.model.vocabulary)

    def _fill(self, entries: Sequence[_Entry]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for place, entry in enumerate(entries):
            batch.token[place], batch.pos[place] = entry.token, entry.position
            batch.n_seq_id[place], batch.logits[place] = len(entry.sequences), entry.has_logits
            ids = batch.seq_id[place]
            for number, sequence in enumerate(entry.sequences):
                ids[number] = sequence

    def _check_room(self, more: int) -> None:
        held = sum(each.cells for each in self._held) + self.node_count
        if held + more > self._capacity:
            raise CacheFull(
                f"the draft model's cache holds {held} tokens of {self._capacity} and cannot take {more} more"
            )

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.model.vocabulary:
            raise ValueError(f"token {token} is outside the vocabulary 0..{self.model.vocabulary - 1}")


def _is_text(item: tuple[Any, int | bytes]) -> bool:
    return isinstance(item[1], int)


def _digest(frame: Frame) -> bytes:
    return hashlib.blake2b(frame.tobytes(), digest_size=16, key=str(frame.shape).encode()).digest()


@contextmanager
def _watched(library: Any, context: Any, stop: Stop | None) -> Iterator[None]:
    """Let `stop`, asked now and every LOOK_S, end the forward of a context on a CPU; raise what `stop` raises."""
    if stop is None:
        yield
        return
    if stop():
        raise Abandoned
    due, raised = time.perf_counter() + LOOK_S, list[BaseException]()

    def is_unwanted(_: Any) -> bool:
        nonlocal due
        now = time.perf_counter()
        if now < due:
            return False
        due = now + LOOK_S
        try:
            return stop()
        except BaseException as error:  # which would be lost in the library
            raised.append(error)
            return True

    ask = library.ggml_abort_callback(is_unwanted)  # kept here for as long as the library may call it
    library.llama_set_abort_callback(context, ask, None)
    try:
        yield
    except Abandoned:
        if raised:
            raise raised[0] from None
        raise
    finally:
        library.llama_set_abort_callback(context, library.ggml_abort_callback(0), None)
