"""What handlers of text share: cleaning, tokens, and the vocabulary beside the network."""

import os
import re
import string
import unicodedata
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from partita.worker.archive.ts.torch_handler.base_handler import BaseHandler

VOCABULARY_FILE = "source_vocab.pt"
_TAGS = re.compile(r"<.*?>")
_CONTRACTIONS = {
    "can't": "cannot",
    "won't": "will not",
    "shan't": "shall not",
    "let's": "let us",
    "ain't": "is not",
    "y'all": "you all",
}
_ENDINGS = {"n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'d": " would", "'m": " am"}
_CONTRACTED = re.compile("|".join(map(re.escape, [*_CONTRACTIONS, *_ENDINGS])), re.IGNORECASE)
_IS = re.compile(r"\b(he|she|it|that|there|here|what|who|where|when|how|why)'s\b", re.IGNORECASE)
_SEPARATORS = re.compile(r"([.,!?()])|[\"<>;:']|<br />")


class TextHandler(BaseHandler, ABC):
    """A handler of text; `source_vocab` maps a token to its number."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.input_text: Any = None

    def initialize(self, context: Any) -> None:
        """Load the network and its vocabulary."""
        super().initialize(context)
        self.source_vocab = _vocabulary(self.get_source_vocab_path(context))

    def get_source_vocab_path(self, ctx: Any) -> str:
        """Return where the vocabulary lies."""
        path = os.path.join(ctx.system_properties.get("model_dir"), VOCABULARY_FILE)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"the archive holds no {VOCABULARY_FILE}, which handlers of text need")
        return path

    def _expand_contractions(self, text: str) -> str:
        def whole(match: re.Match[str]) -> str:
            found = match.group(0).lower()
            return _CONTRACTIONS.get(found) or _ENDINGS[found]

        return _CONTRACTED.sub(whole, _IS.sub(r"\1 is", text)).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")

    def _remove_html_tags(self, text: str) -> str:
        return _TAGS.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(str.maketrans("", "", string.punctuation))

    _remove_puncutation = _remove_punctuation

    def _tokenize(self, text: str) -> list[str]:
        return _SEPARATORS.sub(lambda match: f" {match.group(1) or ''} ", text.lower()).split()

    def get_word_token(self, input_tokens: Sequence[str]) -> list[str]:
        """Return tokens without the mark that byte-pair tokenizers put before a word."""
        return [token.replace("Ġ", "") for token in input_tokens]


def ngrams(tokens: Sequence[str], largest: int) -> Iterator[str]:
    """Yield the tokens, then each run of 2 to `largest` of them joined by spaces."""
    yield from tokens
    for size in range(2, largest + 1):
        for start in range(len(tokens) - size + 1):
            yield " ".join(tokens[start : start + size])


class _Numbers:
    """A vocabulary as a plain dict, in which an unknown token is ``<unk>``, or 0."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._unknown = numbers.get("<unk>", 0)

    def __getitem__(self, token: str) -> int:
        return self._numbers.get(token, self._unknown)


def _vocabulary(path: str) -> Any:
    try:
        loaded = torch.load(path, weights_only=True)
    except Exception as error:
        raise RuntimeError(
            f"{VOCABULARY_FILE} holds an object of another package (torchtext's Vocab?), which is not loaded "
            "since that could run any code; save it as a dict: torch.save(dict(vocab.get_stoi()), "
            f'"{VOCABULARY_FILE}")'
        ) from error
    return _Numbers(loaded) if isinstance(loaded, dict) else loaded
