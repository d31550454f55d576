"""Write the prompts of `ppo_tiny.rpeg`: remainders of numbers by 5, such as `7043%5=` with answer 3.

    python examples/data/make_arithmetic.py

1000 prompts to train on and 400 held out, drawn without replacement from all 9000 four-digit numbers, so that
no held-out prompt is trained on. The five answers are about equally frequent: a constant answer is right one
time in five.
"""

import json
import random
from pathlib import Path

TRAINING, HELD_OUT = 1000, 400
HERE = Path(__file__).parent


def main() -> None:
    """Write both files beside this script."""
    numbers = random.Random(5).sample(range(1000, 10000), TRAINING + HELD_OUT)
    for name, part in (("train", numbers[:TRAINING]), ("heldout", numbers[TRAINING:])):
        lines = [json.dumps({"prompt": f"{n}%5=", "answer": str(n % 5)}) + "\n" for n in part]
        (HERE / f"arithmetic_{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
