"""Where a local model comes from: a folder as transformers saves it, or sizes of which a small one is made.

Beside weights that stay, adapters may learn.
"""

import hashlib
import warnings
import weakref
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import nn

from palestra.config import Config, ConfigError, NonEmptyStr, PositiveFloat, PositiveInt, cut
from palestra.randomness import seeded_global_state
from palestra.text.models.encode import Encoder
from palestra.text.models.extra import library
from palestra.text.models.folder import at_path, check_folder, sha256_of, weight_files
from palestra.text.models.local import AllWeights, LocalModel, Tuned, Weights, batch_of
from palestra.text.models.losses import SupervisedConfig
from palestra.text.models.model import Example, Job, Message, SamplingConfig
from palestra.text.models.network import Network, draw_answers

# ---- adapters ------------------------------------------------------------------------------------------


class LoRAConfig(Config):
    """A low-rank adapter: what it adds to a layer is the product of two thin matrices."""

    usual: ClassVar[Any] = {"rank": 16, "alpha": 32.0, "targets": "all_linear"}

    rank: PositiveInt
    """the inner size of the product"""
    alpha: PositiveFloat
    """the product counts alpha / rank times"""
    targets: Literal["all_linear"] | list[NonEmptyStr]
    """the layers that get one, by the ends of their names, such as q_proj; all_linear: all linear ones but the last"""


class SharedNetwork:
    """A network without gradients, and the adapters in it, of which one is active.

    base_sha256: of its folder.
    """

    def __init__(self, network: Network, base_sha256: str) -> None:
        self.network, self.base_sha256 = network.requires_grad_(False), base_sha256
        self.numbers, self.active = count(), ""


class Adapter:
    """The weights of one low-rank adapter (Hu et al. 2022), by peft, in a network that other adapters share.

    key: an int64 of which its first matrices are drawn; its second ones are 0, so that it begins as the base. Raises
    ConfigError, at the key `adapter.targets`, if it does not fit the network.
    """

    def __init__(self, shared: SharedNetwork, config: LoRAConfig, key: int) -> None:
        self.shared, self.base_sha256 = shared, shared.base_sha256
        self.name = f"adapter_{next(shared.numbers)}"
        peft = library("peft")
        lora = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=0.0,
            target_modules="all-linear" if config.targets == "all_linear" else list(config.targets),
        )
        causal_lm = shared.network.causal_lm
        with seeded_global_state(key), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the network has other adapters
            try:
                peft.inject_adapter_in_model(lora, causal_lm, adapter_name=self.name)
            except ValueError as error:
                message = f"expected layers of the model, got {config.targets}: {cut(str(error), 200)}"
                raise ConfigError.at("adapter.targets", message) from error
        self.layers = {name: each for name, each in _layers(causal_lm).items() if self.name in each.lora_A}
        if others := [name for name, layer in self.layers.items() if not hasattr(layer.get_base_layer(), "weight")]:
            raise ConfigError.at("adapter.targets", f"expected linear layers alone, got {others[0]}, too; list others")
        self.parameters: dict[str, nn.Parameter] = {
            f"{name}.{part}": getattr(layer, part)[self.name].weight
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }
        for each in self.parameters.values():
            each.data = each.data.float()  # small steps would not move numbers of bfloat16
        self._initial = {name: each.detach().clone() for name, each in self.parameters.items()}
        self.activate()

    def activate(self) -> None:
        if self.shared.active == self.name:
            return
        for layer in _layers(self.shared.network.causal_lm).values():
            layer.set_adapter([self.name] if self.name in layer.lora_A else [])
        self.shared.active = self.name
        self.shared.network.requires_grad_(False)
        for each in self.parameters.values():
            each.requires_grad_(True)

    def initial(self) -> Weights:
        return self._initial

    @torch.no_grad()
    def whole(self) -> Weights:
        """Return the weights of the network with the adapter merged into them."""
        self.activate()
        state = {
            name.replace(".base_layer.", "."): value
            for name, value in self.shared.network.causal_lm.state_dict().items()
            if ".lora_" not in name
        }
        for name, layer in self.layers.items():
            weight = f"{name}.weight"
            state[weight] = (state[weight] + layer.get_delta_weight(self.name)).to(state[weight].dtype)
        return state


def _layers(causal_lm: Any) -> dict[str, Any]:
    """Return the layers of a network that have adapters, by name."""
    kind = library("peft.tuners.lora").LoraLayer
    return {name: each for name, each in causal_lm.named_modules() if isinstance(each, kind)}


Dtype = Literal["float32", "bfloat16"]

# ---- from a folder -----------------------------------------------------------------------------------


class FolderConfig(Config):
    usual: ClassVar[Any] = {"adapter": None, "dtype": "float32"}

    name: Literal["folder"]
    """a causal language model as transformers saves it, with its tokenizer and chat template; safetensors alone"""
    path: NonEmptyStr
    """the folder"""
    adapter: LoRAConfig | None
    """what learns, beside weights that stay; null: the weights themselves"""
    dtype: Dtype
    """of the weights as they are computed with; those that learn, and adapters, are kept in float32"""

    def build(self, key: int, device: torch.device) -> LocalModel:
        """Return the model. key: an int64 of which an adapter is drawn. Raises ConfigError, at keys of this config."""
        path = Path(self.path).expanduser().absolute()
        check_folder(path)
        base_sha256 = sha256_of(path)
        if self.adapter is None:
            network = self._load(path, device)
            learning: Any = AllWeights(network, base_sha256, lambda: self._load(path, device))
        else:
            place = (base_sha256, self.dtype, str(device))
            if (shared := _shared_networks.get(place)) is None:
                shared = _shared_networks[place] = SharedNetwork(self._load(path, device), base_sha256)
            network, learning = shared.network, Adapter(shared, self.adapter, key)
        return LocalModel(network, self._encoder(path, network), learning)

    def _load(self, path: Path, device: torch.device) -> Network:
        auto = library("transformers").AutoModelForCausalLM
        options = {**OFFLINE, "use_safetensors": True, "dtype": getattr(torch, self.dtype), "output_loading_info": True}
        failed: Exception | None = None
        self._require_weights(path, auto)
        for attention in ("sdpa", "eager"):  # said, because a folder might name one of another machine
            try:
                with seeded_global_state(0):
                    causal_lm, info = auto.from_pretrained(path, attn_implementation=attention, **options)
            except Exception as error:
                failed = failed or error
                continue
            if missing := sorted(info["missing_keys"]):
                raise at_path(f"expected all weights of the model in {self.path!r}, got none of {missing[0]}")
            network = Network(causal_lm.to(device).eval())
            if network.context is not None and network.context < 2:
                found = network.context
                raise at_path(f"expected a model in {self.path!r} that reads two tokens or more, got {found}")
            if broken := [name for name, each in causal_lm.named_parameters() if not each.isfinite().all()]:
                raise at_path(f"expected finite weights in {self.path!r}, got others in {broken[0]}")
            self._require_agreement(network)
            return network
        message = f"expected a causal language model that transformers loads from {self.path!r}"
        raise at_path(f"{message}, got {type(failed).__name__}: {cut(str(failed), 300)}") from failed

    def _require_weights(self, path: Path, auto: Any) -> None:
        """Raise ConfigError for a config of a larger model than the weights are, before there is memory for it."""
        try:
            config = library("transformers").AutoConfig.from_pretrained(path, **OFFLINE)
            with torch.device("meta"), seeded_global_state(0):
                made = auto.from_config(config, trust_remote_code=False, attn_implementation="eager")
        except Exception:
            return  # loading it fails alike, and tells why
        num = sum(each.numel() for each in (*made.parameters(), *made.buffers()))
        num_bytes = sum((path / name).stat().st_size for name in weight_files(path))
        if num > 2 * num_bytes + BUFFERS:  # a byte holds two numbers at most
            message = f"expected a config in {self.path!r} that fits its weights of {num_bytes:,} bytes"
            raise at_path(f"{message}, got one of {num:,} numbers")

    def _require_agreement(self, network: Network) -> None:
        """Raise ConfigError for a network whose answers have other probabilities when they are learned than when drawn.

        There are such, which do not leave padding out.
        """
        longest = 9 if network.context is None else max(1, min(9, network.context // 2))
        num_answer = 8 if network.context is None else max(1, min(8, network.context - longest))
        prompts = [(3 % network.num_tokens,), tuple(number % network.num_tokens for number in range(1, longest + 1))]
        sampling = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=num_answer)
        try:
            drawn = draw_answers(network, prompts, torch.tensor([1, 2], device=network.device), sampling, (), None)
            examples = [Example(p, tuple(d.ids), 1.0, tuple(d.log_probs)) for p, d in zip(prompts, drawn, strict=True)]
            job = Job(examples, SupervisedConfig(name="supervised", per="token"), "before", 1.0)
            batch = batch_of(examples, network.device)
            with torch.no_grad():
                difference = float((Tuned(network, job)(batch) - batch["sampled"]).abs().max())
        except Exception as error:  # there are many kinds of models, of which some keep no cache of what they have read
            message = f"expected a model in {self.path!r} that answers token by token, from a cache of what it has read"
            raise at_path(f"{message}, got {type(error).__name__}: {cut(str(error), 200)}") from error
        if not difference < MOST_DIFFERENCE[self.dtype]:
            message = f"expected a model in {self.path!r} that reads a padded prompt like any other, got one in which"
            raise at_path(f"{message} log-probabilities differ by {difference:.2g}")

    def _encoder(self, path: Path, network: Network) -> Encoder:
        try:
            tokenizer = library("transformers").AutoTokenizer.from_pretrained(path, **OFFLINE)
        except Exception as error:
            message = f"expected a tokenizer that transformers loads from {self.path!r}"
            raise at_path(f"{message}, got {type(error).__name__}: {cut(str(error), 300)}") from error
        if not tokenizer.is_fast:
            message = f"expected a tokenizer in {self.path!r} that its tokenizer.json describes, got another kind"
            raise at_path(message)
        if not tokenizer.chat_template:
            raise at_path(f"expected a chat template of the tokenizer in {self.path!r}, got none")
        if len(tokenizer) > network.num_tokens:
            message = f"expected a tokenizer in {self.path!r} with at most {network.num_tokens:,} tokens"
            raise at_path(f"{message}, which the model knows, got {len(tokenizer):,}")
        said = network.causal_lm.generation_config.eos_token_id
        ends = [tokenizer.eos_token_id, *(said if isinstance(said, list) else [said])]
        stops = list(dict.fromkeys(each for each in ends if each is not None))
        if wrong := [each for each in stops if not isinstance(each, int) or not 0 <= each < network.num_tokens]:
            raise at_path(f"expected eos_token_id in {self.path!r} to be the model's tokens, got {cut(repr(wrong[0]))}")
        try:
            encoder = Encoder(tokenizer, stops)
            encoder.isolate()
            read = list(encoder.encode([(Message("user", text),) for text in ("?", "no")]))
        except ValueError as error:
            message = f"expected a chat template that works, in {self.path!r}, got an error: {cut(str(error), 300)}"
            raise at_path(message) from error
        if read[0] == read[1]:
            message = f"expected a chat template in {self.path!r} that shows messages, got one that leaves out what"
            raise at_path(f"{message} the user says")
        if not encoder.stops:
            raise at_path(f"expected a token that ends an answer (eos_token) in {self.path!r}, got none")
        return encoder


MOST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.2}  # of log-probabilities, by the type of the weights
BUFFERS = 1 << 26  # numbers that a model may have beside its weights, such as masks
OFFLINE = {"local_files_only": True, "trust_remote_code": False}
_shared_networks: weakref.WeakValueDictionary[tuple[str, str, str], SharedNetwork] = weakref.WeakValueDictionary()


# ---- made in place -----------------------------------------------------------------------------------


class NewConfig(Config):
    usual: ClassVar[Any] = {
        "num_layers": 2,
        "width": 64,
        "num_heads": 4,
        "mlp_width": 256,
        "context": 4096,
        "init_std": 0.1,
    }

    name: Literal["new"]
    """a small Llama that reads and writes bytes; its weights are random"""
    num_layers: PositiveInt
    """blocks of attention and mlp"""
    width: PositiveInt
    """numbers by which a byte is represented between blocks"""
    num_heads: PositiveInt
    """heads of attention; each has width / num_heads numbers, an even number"""
    mlp_width: PositiveInt
    """hidden units of an mlp"""
    context: PositiveInt
    """the most bytes of a prompt with its answer"""
    init_std: PositiveFloat
    """standard deviation of the random weights; a small model learns far quicker from 0.1 than from the usual 0.02"""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % (2 * self.num_heads):
            message = f"expected a divisor of {self.width} / 2, which is half the width, got {self.num_heads}"
            raise ConfigError.at("num_heads", message)
        return self

    def build(self, key: int, device: torch.device) -> LocalModel:
        """Return the model. key: an int64 of which its weights are drawn."""
        network, tokenizer = self._make(key, device), byte_tokenizer()
        base_sha256 = hashlib.sha256(f"{key} {self.model_dump_json()}".encode()).hexdigest()
        learning = AllWeights(network, base_sha256, lambda: self._make(key, device))
        return LocalModel(network, Encoder(tokenizer, [tokenizer.eos_token_id]), learning)

    def _make(self, key: int, device: torch.device) -> Network:
        transformers, tokenizer = library("transformers"), byte_tokenizer()
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.width,
            intermediate_size=self.mlp_width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_heads,
            max_position_embeddings=self.context,
            initializer_range=self.init_std,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
        with seeded_global_state(key):
            return Network(transformers.LlamaForCausalLM(config).to(device))


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
    # each byte by the letter that stands for it in byte-level vocabularies (Radford et al. 2019)
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    names = {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=names, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[0],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
