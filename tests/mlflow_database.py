"""The tables of MLflow's own schema, as far as runs are read from them."""

SCHEMA = """
create table experiments (experiment_id integer, name text, lifecycle_stage text);
create table runs (
  run_uuid text, name text, status text, start_time integer, lifecycle_stage text, experiment_id integer
);
create table params (key text, value text, run_uuid text);
create table tags (key text, value text, run_uuid text);
create table latest_metrics (key text, value real, is_nan integer, run_uuid text);
create table metrics (key text, value real, timestamp integer, run_uuid text, step integer, is_nan integer);
insert into experiments values (1, 'sweep', 'active');
"""
