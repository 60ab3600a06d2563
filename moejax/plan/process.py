"""Make a plan in a new process, with an environment for the topology. The caller's JAX backend does not change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from moejax.config import build, dump
from moejax.errors import UserError
from moejax.plan.plan import Plan, check_plan, measure
from moejax.plan.topology import CPU, Topology, check_compiler, parse
from moejax.train.training import Training
from moejax.wording import told

_STOPPED = "another program on this machine stopped it; run the command again"
_FROM_OUTSIDE: dict[int, str] = {
    signal.SIGKILL: "the system usually does this when memory runs out; free memory, or plan on a machine with more "
    "memory",
    signal.SIGTERM: _STOPPED,
    signal.SIGHUP: _STOPPED,
}
"""Signals from outside the process, with their usual cause and a remedy."""


def plan(training: Training, topology: Topology, *, text_to: Path | None = None) -> Plan:
    """Compile a training run's step for a topology in a new process, and return the plan.

    ``text_to`` names a file for the compiled program's text. A training run that does not fit raises no error; the plan
    reports it.

    Raises:
      UserError: the training run cannot run on the topology, the compiler is missing, or its process was killed.
    """
    check_plan(training, topology)
    check_compiler(topology)
    request = {"training": training.as_json(), "topology": topology.name, "text_to": str(text_to or "")}
    done = subprocess.run(
        [sys.executable, "-m", "moejax.plan", str(os.getpid())],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment(topology),
        check=False,
    )
    if why := _FROM_OUTSIDE.get(by := -done.returncode):
        raise UserError(f"The compilation for {topology.name} was killed by {signal.Signals(by).name}; {why}.")
    answer = done.stdout.strip().splitlines()
    if done.returncode or not answer:
        raise RuntimeError(
            f"The compilation for {topology.name} failed with status {done.returncode}:\n{done.stderr[-4000:]}"
        )
    reply = json.loads(answer[-1])
    if "mistake" in reply:
        raise UserError(reply["mistake"])
    return build(Plan, reply, "plan")


def environment(topology: Topology) -> dict[str, str]:
    """Return the environment variables of a process that compiles for a topology, keyed by name."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if topology.chip_name == CPU:
        # XLA treats flags that do not begin with a dash as a file name.
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", variables.pop("XLA_FLAGS", "")).strip()
        return variables | ({"XLA_FLAGS": flags} if flags else {}) | {"JAX_NUM_CPU_DEVICES": str(topology.devices)}
    # Skip the metadata server of a TPU machine, and allow another process to use libtpu at the same time.
    return {**variables, "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_STDERR_LOG_LEVEL": "3"}


def main() -> int:
    """Read a request from stdin and write one line of JSON to stdout."""
    request = json.load(sys.stdin)
    training = build(Training, request["training"], "training")
    try:
        reply = dump(measure(training, parse(request["topology"]), text_to=request["text_to"]))
    except UserError as error:
        reply = {"mistake": told(error)}
    print(json.dumps(reply))
    return 0
