"""The reward of the study's sums: of the answer's two digits and its end, the share that is right."""


def verify(prompt: str, response: str, record: dict) -> float:
    """1.0 for exactly `record["answer"]`; a right digit or end counts wherever else the response is wrong."""
    answer = record["answer"]
    right = sum(a == b for a, b in zip(answer, response, strict=False)) + (len(response) == len(answer))
    return right / (len(answer) + 1)
