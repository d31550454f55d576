"""The error of data that cannot be used."""


class DataError(Exception):
    """A prompt file or tokenizer is missing or malformed; the message says where and what to do."""
