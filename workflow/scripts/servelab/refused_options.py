"""Server options that no config may set, and the weights that are safe to load; the config and the engine ask here."""

# What servelab sets itself, and what would keep it from talking to its own server.
OURS = {
    "host": "servelab listens on 127.0.0.1 only",
    "port": "servelab asks the system for a free port",
    "model": "name models under `models`",
    "tokenizer": "it comes with the model's folder",
    "api_key": "servelab makes a key for every start",
    "served_model_name": "servelab makes a name for every start",
    "model_tag": "name models under `models`",
    "root_path": "servelab asks for /v1 and /metrics as they are",
    "ssl_keyfile": "servelab speaks plain HTTP on 127.0.0.1",
    "ssl_certfile": "servelab speaks plain HTTP on 127.0.0.1",
    "headless": "there would be no server to measure",
    "disable_log_stats": "/metrics would be empty",
    "uds": "servelab speaks TCP",
    "config": "write the options into the study",
}

# vLLM's «auto» falls back to pickled weights, and those run code when they are read.
SAFE_LOAD_FORMATS = (
    "safetensors",
    "fastsafetensors",
    "runai_streamer",
    "sharded_state",
    "mistral",
    "gguf",
    "dummy",
)
