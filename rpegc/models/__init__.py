"""Model facts: the shipped ones by short name, and Hugging Face `config.json` files as they are published."""

from rpegc.models.families import FAMILIES
from rpegc.models.hugging_face import import_config
from rpegc.models.library import Facts, decode_config, load_facts, load_model, model_names

__all__ = ["FAMILIES", "Facts", "decode_config", "import_config", "load_facts", "load_model", "model_names"]
