"""Write stores with MLflow's own client."""

import os
import warnings

import pytest


def write(address, runs, experiment="sweep"):
    """Log runs: by name the params, the metrics as (name, step, value) in the order of writing, and the status."""
    mlflow = pytest.importorskip("mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = mlflow.MlflowClient(address)
        known = client.get_experiment_by_name(experiment)
        key = known.experiment_id if known else client.create_experiment(experiment)
        for name, (params, metrics, status) in runs.items():
            run = client.create_run(key, run_name=name).info.run_id
            points = [mlflow.entities.Metric(*point[::2], at, point[1]) for at, point in enumerate(metrics)]
            for start in range(0, len(points), 1000):
                client.log_batch(run, metrics=points[start : start + 1000])
            for param, value in params.items():
                client.log_param(run, param, value)
            client.set_terminated(run, status) if status else None
    return client
