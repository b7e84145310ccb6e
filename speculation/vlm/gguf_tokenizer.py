"""Tokenizer and chat template of a GGUF file, out of its own metadata or the tokenizer files that lie beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast as _PreTrainedTokenizerFast

from speculation.text import first_line
from speculation.vlm.families.text import Text
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.processing import Processor, check_template

PreTrainedTokenizerFast: Any = _PreTrainedTokenizerFast
_CONTROL, _USER_DEFINED = 3, 4
"""GGUF's types of tokens that a tokenizer has besides its text; those of control are not shown."""
_BYTE_LEVEL = "gpt2"
_REMEDY = "put the tokenizer files of the original checkpoint (tokenizer.json, tokenizer_config.json) beside it"


def _split(pattern: str) -> Callable[[], Any]:
    """Return what makes a pre-tokenizer that cuts text as `pattern` says, into bytes' letters."""
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _words(letters: str, digits: str) -> str:
    """Return the expression that Qwen's and Llama 3's tokenizers cut text with; they differ in letters and digits."""
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_QWEN2, _LLAMA3 = _split(_words(r"\p{L}+", r"\p{N}")), _split(_words(r"\p{L}+", r"\p{N}{1,3}"))
PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
}
"""What tokenizer.ggml.pre calls the ways to cut text into words before it is encoded (llama.cpp, llama-vocab.cpp)."""


def gguf_processor(path: Path, metadata: Mapping[str, Any]) -> Processor:
    """Return tokenizer and chat template of a GGUF file with this metadata, without a processor of images.

    Files beside it go before its own. Raises ModelFolderError for a tokenizer that is not known, for files beside it
    that are another model's, and where there is no chat template.
    """
    tokens = _tokens(path, metadata)
    template = str(metadata.get("tokenizer.chat_template", ""))
    if (path.parent / "tokenizer.json").is_file():
        processor = _beside(path, template)
        if problem := difference(tokens, processor.tokenizer):
            raise ModelFolderError(
                f"{path}: {problem} in {path.parent / 'tokenizer.json'}; they are of two models: move one of them away"
            )
    elif not template:
        raise ModelFolderError(f"{path} has no chat template; {_REMEDY}")
    else:
        processor = Processor(_build(path, metadata, tokens), None, template)
    check_template(processor, str(path))
    return processor


def _beside(path: Path, template: str) -> Processor:
    try:
        return Processor.load(path.parent, Text(), template=template)
    except (OSError, ValueError, KeyError) as error:
        raise ModelFolderError(
            f"{path}: the tokenizer files beside it do not load ({first_line(error)}); fetch them again or move them "
            "away"
        ) from None


def difference(tokens: Sequence[str], tokenizer: Any) -> str:
    """Return the first token whose text is another one in a tokenizer, as `token ID is A here and B`; empty if none."""
    theirs = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    for token, (one, other) in enumerate(zip_longest(tokens, theirs)):
        if one != other:
            return f"token {token} is {one!r} here and {other!r}"
    return ""


def _tokens(path: Path, metadata: Mapping[str, Any]) -> list[str]:
    """Return the texts of all tokens but those that only pad the embedding."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ModelFolderError(f"{path} has no tokenizer (tokenizer.ggml.tokens); convert it again")
    end = len(tokens)
    while end and tokens[end - 1] == f"[PAD{end - 1}]":
        end -= 1
    return tokens[:end]


def _build(path: Path, metadata: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    kind, cut = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre", ""))
    if kind != _BYTE_LEVEL or cut not in PRE_TOKENIZERS:
        raise ModelFolderError(
            f"{path}: a tokenizer of type {kind!r} with pre-tokenizer {cut!r} is not known (known are "
            f"{', '.join(PRE_TOKENIZERS)}); {_REMEDY}"
        )
    try:
        built = _byte_level(metadata, tokens, cut)
        named = {
            f"{name}_token": tokens[metadata[f"tokenizer.ggml.{name}_token_id"]]
            for name in ("bos", "eos")
            if metadata.get(f"tokenizer.ggml.{name}_token_id", len(tokens)) < len(tokens)
        }
    except Exception as error:
        # tokenizers raises bare Exceptions; the file is at fault whichever it is.
        raise ModelFolderError(f"{path}: its tokenizer cannot be built ({error}); convert it again") from None
    return PreTrainedTokenizerFast(tokenizer_object=built, clean_up_tokenization_spaces=False, **named)


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], cut: str) -> Any:
    """Return a byte-level BPE tokenizer, whose tokens of other types than text are added ones."""
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    built = Tokenizer(BPE(vocabulary, merges, ignore_merges=PRE_TOKENIZERS[cut] is _LLAMA3))
    if PRE_TOKENIZERS[cut] is _QWEN2:
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = PRE_TOKENIZERS[cut]()
    built.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"][: len(tokens)]
    for kind, add in ((_CONTROL, built.add_special_tokens), (_USER_DEFINED, built.add_tokens)):
        chosen = [token for token, each in zip(tokens, types, strict=True) if each == kind]
        add([AddedToken(token, special=kind == _CONTROL, normalized=False) for token in chosen])
    return built
