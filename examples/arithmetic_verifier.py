"""The reward of the arithmetic prompts: whether the response is the answer, and nothing more.

A wrong response earns part of the reward for what it begins right, so that a policy that starts from random
weights finds its way: of an answer's characters and its end, the fraction produced before the first mistake.
Answering the same digit always earns 0.2 on average.
"""


def verify(prompt: str, response: str, record: dict) -> float:
    """1.0 for exactly `record["answer"]`, else partial credit below 1."""
    answer = record["answer"]
    if response == answer:
        return 1.0
    right = 0
    while right < min(len(response), len(answer)) and response[right] == answer[right]:
        right += 1
    return right / (len(answer) + 1)
