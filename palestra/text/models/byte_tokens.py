"""The tokens of models that are made in place: bytes, and those that begin and end messages."""

from functools import cache
from typing import Any

from palestra.text.models.extra import library

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message.role }}|>{{ message.content }}{% if message.role == 'assistant' %}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def byte_tokenizer() -> Any:
    """Return a tokenizer of transformers: token b is byte b, and the tokens after 255 are special."""
    tokenizers, transformers = library("tokenizers"), library("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=_names_of_bytes(), merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[0],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _names_of_bytes() -> dict[str, int]:
    """Return each byte by the letter that stands for it in byte-level vocabularies (Radford et al. 2019)."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
