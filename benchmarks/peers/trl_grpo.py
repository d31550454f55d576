"""GRPO of a tiny Llama by TRL's trainer, on one CPU thread: `python trl_grpo.py SETTINGS.json`.

Policy and reference start from the checkpoint `start`, which is made from random weights by a call with
`"steps": 0`. It runs under whatever interpreter has TRL, so it imports nothing of this project. It prints one
JSON object: the model's `parameters`, the versions of its `software`, and for each step its `seconds`, those
of them in `generation`, the process's `cpu_seconds`, and the `tokens` of its prompts and responses.
"""

import json
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

EOS = 256


def tokenizer():
    """A token per ASCII character, 256 ids in all, and one for the end of the sequence."""
    names = [chr(i) if 32 < i < 127 else f"<{i}>" for i in range(EOS)]
    words = {name: i for i, name in enumerate([*names, "<eos>"])}
    made = Tokenizer(WordLevel(words, unk_token="<0>"))
    made.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<0>")


def model(m):
    """A Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=EOS + 1,
        hidden_size=m["hidden"],
        intermediate_size=m["ffn"],
        num_hidden_layers=m["layers"],
        num_attention_heads=m["attention_heads"],
        num_key_value_heads=m["kv_heads"],
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


class Steps(TrainerCallback):
    """Wall and CPU time when steps end."""

    def __init__(self):
        self.ends = []

    def on_train_begin(self, *_, **__):
        self.ends.append((time.perf_counter(), time.process_time()))

    on_step_end = on_train_begin


def main(settings):
    if not settings["steps"]:
        model(settings["model"]).save_pretrained(settings["start"])
        return
    torch.set_num_threads(1)
    tokens, generation = [], []

    def reward(prompts, completions, completion_ids, **_):
        tokens.append(len(prompts) * settings["prompt_length"] + sum(map(len, completion_ids)))
        return [text.count("a") / settings["response_length"] for text in completions]

    with tempfile.TemporaryDirectory() as directory:
        # A static cache is slower here: the trainer does not let generation be compiled.
        config = GRPOConfig(
            output_dir=directory,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            per_device_train_batch_size=settings["prompts"] * settings["rollouts"],
            num_generations=settings["rollouts"],
            max_completion_length=settings["response_length"],
            max_steps=settings["steps"],
            beta=0.01,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            use_cpu=True,
            bf16=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=settings["seed"],
            **settings["options"],
        )
        steps = Steps()
        trainer = GRPOTrainer(
            model=settings["start"],
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": settings["texts"]}),
            processing_class=tokenizer(),
            callbacks=[steps],
        )
        generate = trainer.model.generate

        def timed(*args, **kwargs):
            started = time.perf_counter()
            try:
                return generate(*args, **kwargs)
            finally:
                generation.append(time.perf_counter() - started)

        trainer.model.generate = timed
        trainer.train()
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(steps.ends)]
    print(
        json.dumps(
            {
                "parameters": sum(p.numel() for p in trainer.model.parameters()),
                "software": {name: version(name) for name in ("trl", "transformers", "torch")},
                "steps": [
                    {"seconds": s, "generation": g, "cpu_seconds": c, "tokens": n}
                    for (s, c), g, n in zip(spent, generation, tokens, strict=True)
                ],
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
