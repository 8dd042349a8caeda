"""The default handler ``text_classifier``: a text in, each class's probability out."""

from typing import Any

import torch

from partita.worker.archive.ts.torch_handler.text_handler import TextHandler, ngrams
from partita.worker.archive.ts.utils.util import map_class_to_label


class TextClassifier(TextHandler):
    """For networks over an embedding bag: called with all texts' tokens in a row, and where each begins."""

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """Return the tokens' numbers with each text's first position, and the tokens."""
        rows, starts, words, at = [], [], [], 0
        for line in data:
            text = line.get("data") or line.get("body") or ""
            if isinstance(text, bytes | bytearray):
                text = text.decode("utf-8")
            tokens = self._tokenize(self._cleaned(text))
            numbers = [self.source_vocab[token] for token in ngrams(tokens, self.ngrams)]
            rows.append(torch.as_tensor(numbers, dtype=torch.int64, device=self.device))
            starts.append(at)
            words.append(tokens)
            at += len(numbers)
        return (torch.cat(rows), torch.as_tensor(starts, device=self.device)), words

    def _cleaned(self, text: str) -> str:
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        return self._remove_punctuation(self._remove_accented_characters(text))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the network."""
        (numbers, starts), _ = data
        return super().inference(numbers, starts)

    def postprocess(self, data: Any) -> Any:
        """Return each text's classes with their probabilities."""
        return map_class_to_label(torch.softmax(data, dim=-1).tolist(), self.mapping)
