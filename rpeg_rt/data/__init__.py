"""Real input: prompts from JSONL files and the tokenizers that turn them into token ids. No torch here."""
