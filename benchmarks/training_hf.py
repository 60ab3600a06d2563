"""Run the Hugging Face contender of ``benchmarks/training.py``, by a Python with torch and transformers.

    python benchmarks/training_hf.py '{"vocab_size": 256, ...}' BATCH LENGTH EXPERTS

The first argument is an architecture in the format of ``moejax.config.dump``, the last argument an experts
implementation of transformers ("eager", "batched_mm", "grouped_mm"). The program prints ``ready`` and facts; for each
number on standard input, it trains this number of steps and prints the seconds; at the end, it prints the peak memory.
"""

import json
import resource
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402  # pyright: ignore[reportMissingImports]
import transformers  # noqa: E402  # pyright: ignore[reportMissingImports]


def config_of(shape: dict) -> transformers.PretrainedConfig:
    """Return a Mixtral config; with shared experts a Qwen2-MoE config, whose shared expert has a scalar gate; for a
    dense model a Llama config.
    """
    common = {
        "vocab_size": shape["vocab_size"],
        "hidden_size": shape["model_dim"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_heads"],
        "num_key_value_heads": shape["num_kv_heads"],
        "head_dim": shape["head_dim"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": shape["tied_embeddings"],
        "rms_norm_eps": 1e-6,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    if not shape["num_experts"]:
        return transformers.LlamaConfig(**common, intermediate_size=shape["dense_hidden"])
    mixture = {"num_experts_per_tok": shape["top_k"], "output_router_logits": True, "router_aux_loss_coef": 0.01}
    if not shape["num_shared_experts"]:
        return transformers.MixtralConfig(
            **common, **mixture, intermediate_size=shape["expert_hidden"], num_local_experts=shape["num_experts"]
        )
    return transformers.Qwen2MoeConfig(
        **common,
        **mixture,
        num_experts=shape["num_experts"],
        moe_intermediate_size=shape["expert_hidden"],
        shared_expert_intermediate_size=shape["num_shared_experts"] * shape["expert_hidden"],
        norm_topk_prob=True,
        intermediate_size=shape["expert_hidden"],
    )


def main() -> None:
    shape, batch, length, experts = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(shape))
    if shape["num_experts"]:
        model.set_experts_implementation(experts)
    model.train()
    tokens = torch.randint(0, shape["vocab_size"], (batch, length))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        fused=True,
    )

    def step() -> float:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    first = step()
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"start_seconds": time.perf_counter() - START, "parameters": parameters, "first_loss": first}
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        start = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(json.dumps([time.perf_counter() - start[0], time.process_time() - start[1]]), flush=True)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), flush=True)


if __name__ == "__main__":
    main()
