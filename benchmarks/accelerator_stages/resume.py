"""Check whether a killed and resumed training run logs bitwise identical numbers. Imports no JAX.

Each training run is ``moejax train`` in its own process. Two uninterrupted runs show whether the device itself is
deterministic; sums by atomic additions, as for scattered rows, may not be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from accelerator_stages.cases import Cases, Row

ROOT = Path(__file__).resolve().parents[2]
CONFIG = '''
"""A small MoE model on random tokens: a log line at every step, a checkpoint every fourth step."""
from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.name = "resumed"
    config.architecture = dict(
        vocab_size=257, model_dim={width}, num_layers=2, num_heads=4, num_kv_heads=2, head_dim={width} // 4,
        num_experts=8, top_k=2, expert_hidden={width},
    )
    config.recipe = dict(
        budgets_tokens=[{steps} * {batch}],
        batch_tokens={batch},
        data=dict(source={source!r}, sequence_length={length}, validation_share=0.2, validation_tokens={batch}),
        optimizer=dict(learning_rate=1e-3, warmup_tokens=2 * {batch}),
        runtime=dict(compute_dtype={dtype!r}),
        log_every_steps=1,
        checkpoint_tokens=4 * {batch},
    )
    return config
'''
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
MEASURED = ("loss", "gradient_norm")


def main(cases: Cases) -> None:
    """Train twice without and once with a kill; if the uninterrupted runs differ, also with XLA's deterministic
    operations.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = _write(folder, cases.is_dry)
        for flags in ("", DETERMINISTIC):
            behind = ", deterministic operations" if flags else ""
            whole = folder / f"whole{bool(flags)}"
            cases.measure(f"one training{behind}", lambda w=whole, f=flags: _ran(_train(config, w, f), w))
            if not cases.is_dry:
                again = folder / f"again{bool(flags)}"
                cases.measure(f"run twice{behind}", lambda a=again, w=whole, f=flags: _twice(config, a, w, f))
            killed = folder / f"killed{bool(flags)}"
            cases.measure(f"killed and resumed{behind}", lambda k=killed, w=whole, f=flags: _killed(config, k, w, f))
            rows = cases.others(cases.stage)
            if all(
                rows.get(f"{case}{behind}", {}).get("is_equal", True) for case in ("run twice", "killed and resumed")
            ):
                break


def _write(folder: Path, is_dry: bool) -> Path:
    """Write the config and its text of random letters."""
    (folder / "text").mkdir()
    for number in range(16):
        (folder / "text" / f"{number}.txt").write_bytes(bytes(97 + byte % 26 for byte in os.urandom(20_000)))
    # Enough steps that even a fast device is still training when the process is killed.
    width, length, batch, steps = (16, 32, 256, 24) if is_dry else (512, 512, 8192, 100)
    path = folder / "resumed.py"
    dtype = "float32" if is_dry else "bfloat16"
    given = {
        "width": width,
        "length": length,
        "batch": batch,
        "steps": steps,
        "dtype": dtype,
        "source": str(folder / "text"),
    }
    path.write_text(CONFIG.format(**given), encoding="utf-8")
    return path


def _train(config: Path, out: Path, flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "moejax", "train", f"--config={config}", "--out", str(out)]
    command += ["--data", str(config.parent / "data")]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(paths)})


def _ran(process: subprocess.Popen[bytes], out: Path) -> Row:
    began = time.perf_counter()
    if process.wait():
        raise RuntimeError(f"moejax train ended with exit status {process.returncode}; the log says why")
    return {"seconds": time.perf_counter() - began, "steps": len(_lines(out))}


def _twice(config: Path, again: Path, whole: Path, flags: str) -> Row:
    return _ran(_train(config, again, flags), again) | _compared(_lines(again), _lines(whole))


def _killed(config: Path, killed: Path, whole: Path, flags: str) -> Row:
    """Train and kill the process after a checkpoint and further steps."""
    process = _train(config, killed, flags)
    while process.poll() is None and not (len(_lines(killed)) >= 6 and _has_checkpoint(killed)):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    if process.wait() == 0:
        raise RuntimeError("the training ended before it could be killed")
    kept = len(_lines(killed))
    return _ran(_train(config, killed, flags), killed) | _compared(_lines(killed), _lines(whole)) | {"killed_at": kept}


def _has_checkpoint(out: Path) -> bool:
    return any(path.is_dir() and path.name.isdigit() for path in out.glob("checkpoints/*/*"))


def _lines(out: Path) -> list[Row]:
    """Return the complete lines of the log."""
    path = out / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _compared(found: Sequence[Row], expected: Sequence[Row]) -> Row:
    """Count the lines with identical numbers; JSON preserves floats exactly."""
    same = [
        [line.get(name) for name in MEASURED] == [other.get(name) for name in MEASURED]
        for line, other in zip(found, expected, strict=False)
    ]
    different = next((line for line, equal in zip(found, same, strict=False) if not equal), None)
    count = max(len(found), len(expected))
    return {
        "lines": count,
        "equal_lines": sum(same),
        "is_equal": count > 0 and sum(same) == count,
        "first_difference": "" if different is None else f"{different.get('phase')} {different.get('step')}",
    }
