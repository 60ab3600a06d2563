"""Kills a real training at random instants and lets it go on, until it has died so often; then compares what is left.

python tests/train/killing.py --kills 100 --processes 1

With --seconds it kills no more after so long; what has been killed until then goes on to its end, and is compared.
"""

import argparse
import collections
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from command import assert_same_training, lines, run, start, write_config


def at_any_time(folder, process, dice):
    """From its start until some steps after it."""
    time.sleep(dice.uniform(0, 10))


def between_steps(folder, process, dice):
    """A moment after it has logged a few more steps."""
    before = lines(folder)
    _until(process, lambda: lines(folder) >= before + dice.randint(1, 6))
    time.sleep(dice.uniform(0, 0.05))


def while_saving(folder, process, dice):
    """While Orbax writes a checkpoint."""
    _until(process, lambda: list(folder.glob("checkpoints/*/*orbax-checkpoint-tmp*")))
    time.sleep(dice.uniform(0, 0.05))


def before_the_hashes(folder, process, dice):
    """When a checkpoint is in its place and its hashes are not."""
    _until(
        process,
        lambda: [
            step
            for step in folder.glob("checkpoints/*/*")
            if step.name.isdigit() and (step / "metadata").exists() and not (step / "manifest-0.json").exists()
        ],
    )


MOMENTS = {
    "any time": at_any_time,
    "between steps": between_steps,
    "while saving": while_saving,
    "before the hashes": before_the_hashes,
}


def kill_and_compare(folder, *, kills, processes, seed, seconds=float("inf")):
    """Kill ``kills`` times over as many trainings as that takes; every finished one is compared with one never killed.
    No more are killed after so many ``seconds``.

    Returns how often each moment was met, and how many trainings ended.
    """
    dice, config, cache = random.Random(seed), write_config(folder), folder / "cache"
    words = ["--processes", processes] if processes > 1 else []
    whole = run(cache, f"--config={config}", "--out", folder / "whole", *words)
    assert whole.returncode == 0, whole.stderr
    met, number, ended, deadline = collections.Counter(), 0, 0, time.monotonic() + seconds

    while sum(met.values()) < kills and time.monotonic() < deadline:
        out = folder / f"killed-{number}"
        out.mkdir(exist_ok=True)
        moment = dice.choice(list(MOMENTS))
        process = start(cache, f"--config={config}", "--out", out, *words)
        MOMENTS[moment](out, process, dice)
        if process.poll() is None:
            _kill(process, dice, processes)
            process.stderr.close()
            met[moment] += 1
            print(f"{sum(met.values())}: {moment}, {lines(out)} lines", flush=True)
        else:
            said = process.communicate()[1]
            assert process.returncode == 0, said
            assert_same_training(out, folder / "whole")
            number, ended = number + 1, ended + 1
    out = folder / f"killed-{number}"
    last = run(cache, f"--config={config}", "--out", out, *words)
    assert last.returncode == 0, last.stderr
    assert_same_training(out, folder / "whole")
    return met, ended + 1


def _kill(process, dice, processes):
    """All processes at once, or one of several, whose fellows then end by themselves."""
    if processes == 1:
        process.kill()
        process.wait()
        return
    workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    victims = [*workers, process.pid] if dice.random() < 0.5 or not workers else [dice.choice(workers)]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    process.wait()
    # The launcher may be gone before its processes: nothing may write to the folder when the next one starts.
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in workers):
        assert time.monotonic() < deadline, "a process outlived its launcher"
        time.sleep(0.05)


def _is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _until(process, seen):
    while process.poll() is None and not seen():
        time.sleep(0.002)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        met, ended = kill_and_compare(Path(place), **vars(options))
        print(f"{sum(met.values())} kills {dict(met)} in {ended} trainings, all equal to the one never killed; "
              f"{time.monotonic() - began:.0f} s")  # fmt: skip
