"""Config: YAML from a person → checked plain dataclasses, or one clear error before anything starts."""
