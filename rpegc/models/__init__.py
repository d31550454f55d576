"""Model facts: the shipped ones by short name, and Hugging Face `config.json` files as they are published."""

from ir_schema.config_reader import decode_config
from ir_schema.families import FAMILIES
from ir_schema.hugging_face import import_config
from rpegc.models.library import Facts, load_facts, load_model, model_names

__all__ = ["FAMILIES", "Facts", "decode_config", "import_config", "load_facts", "load_model", "model_names"]
