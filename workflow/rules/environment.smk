# Needs: a pinned list of files, or a PyPI package or hub id. Makes: the server's environment, the model's folder and
# what this machine can do, once, under resources/; every study uses them again. What is there has no rule (PLAN.there
# says why).
# An option that may be empty is written with «=»: Snakemake quotes an empty text as nothing at all.


if PLAN.environment and not PLAN.there(PLAN.environment_marker[0]):

    rule server_environment:
        output:
            PLAN.environment_marker,
        log:
            f"{PLAN.environment}.log",
        params:
            requirements=PLAN.engine_config.requirements,
            torch=PLAN.engine_config.torch,
            torch_index=PLAN.engine_config.torch_index,
            folder=PLAN.environment,
            pins=PLAN.engine.requirements,
        shell:
            "{PYTHON:q} workflow/scripts/make_environment.py --requirements {params.requirements:q} --torch={params.torch:q}"
            " --torch-index={params.torch_index:q} --output {params.folder:q} 2>&1 | tee -i {log:q}"


for model_folder, model_source in PLAN.models_to_make.items():
    if PLAN.there(parse_time.marker(model_folder)):
        continue

    rule:
        name:
            f"model_{PLAN.identifier(Path(model_folder).name)}"
        input:
            ancient(PLAN.environment_marker),
        output:
            parse_time.marker(model_folder),
        log:
            f"{model_folder}.log",
        params:
            model=lambda wildcards, source=model_source: source,
            python=PLAN.engine.python,
            folder=model_folder,
        shell:
            "{PYTHON:q} workflow/scripts/make_model.py --model {params.model:q} --python={params.python:q}"
            " --output {params.folder:q} 2>&1 | tee -i {log:q}"


if PLAN.limits_file and not PLAN.there(PLAN.limits_file):

    rule machine_limits:
        input:
            ancient(PLAN.environment_marker),
        output:
            PLAN.limits_file,
        log:
            f"{PLAN.limits_file}.log",
        resources:
            gpu=1,
        params:
            python=PLAN.engine.python,
            device=PLAN.engine.device,
        shell:
            "{PYTHON:q} workflow/scripts/measure_limits.py --python {params.python:q} --device {params.device}"
            " --output {output:q} 2>&1 | tee -i {log:q}"
