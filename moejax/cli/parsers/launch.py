"""Define the options of ``moejax launch``."""

from __future__ import annotations

import argparse

from moejax.cli.number import count, share
from moejax.cli.parsers.options import (
    add_config_argument,
    add_exportable_argument,
    add_repeated,
    check_config_or_resume,
)
from moejax.cli.settings import STUDY, TRAINING
from moejax.errors import UserError

HELP = """\
Hand a training, or the trainings of a study that are not done yet, to an engine. Without --submit it prints what it
would hand over (with --json as data), and writes nothing. Run again, it goes on with what failed or was interrupted;
`moejax study status DIR` says how far it is."""
EXAMPLE = """\
  moejax launch slurm --config=FILE.py --config.recipe.data.source=/shared/web --out /shared/mine      # to look at
  moejax launch slurm --config=FILE.py --config.recipe.data.source=/shared/web --out /shared/mine --submit
  moejax launch slurm --config=configs/tiny.py --out /shared/one --chip cpu                     # a single training
  moejax launch slurm --resume --out /shared/mine --chips-per-node 4 --set partition=gpu --set account=me --submit
  moejax launch slurm --config=configs/studies/zhao.py:tiny --out /shared/tiny --chip cpu --submit --wait
  moejax launch gke --config=FILE.py --chip v5p --out gs://bucket/mine --image REGISTRY/moejax:tpu --submit
  moejax launch gke --resume --out gs://bucket/mine --topology v5p:4x4x4 --image REGISTRY/moejax:tpu
  moejax launch sky --config=FILE.py --chip h100 --out s3://bucket/mine --image docker:REGISTRY/moejax:gpu --submit
  moejax launch sky --config=FILE.py --chip h100 --nodes 4 --out s3://bucket/mine --image docker:REGISTRY/moejax:gpu
  moejax study status gs://bucket/mine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the three engines."""
    engines = parser.add_subparsers(dest="engine", required=True, metavar="slurm | gke | sky")
    both = argparse.ArgumentParser(add_help=False)
    add_config_argument(both, STUDY, TRAINING, required=False)
    both.add_argument("--out", metavar="DIR", help="the folder, seen by every machine, or gs://… (runs/NAME)")
    add_exportable_argument(both)
    both.add_argument("--resume", action="store_true", help="go on with the study in --out; needs no --config")
    both.add_argument("--submit", action="store_true", help="hand it over, instead of printing it")
    both.add_argument("--print", action="store_true", help="print it, and write nothing (the default)")
    both.add_argument("--json", action="store_true", help="print trainings, commands and resources as JSON instead")
    both.add_argument("--chip", metavar="NAME", help="h100, v5p, …; for Slurm also cpu")
    both.add_argument("--mfu", type=share, default=0.4, metavar="SHARE", help="expected; for time limits (%(default)s)")
    gpus = argparse.ArgumentParser(add_help=False)
    gpus.add_argument("--chips-per-node", type=count(1, 1_024), default=8, metavar="N", help="of GPUs (%(default)s)")
    gpus.add_argument("--nodes", type=count(1, 100_000), metavar="N", help="for each training (as few as hold it)")
    slurm = engines.add_parser("slurm", parents=[both, gpus], help="jobs through submitit", allow_abbrev=False)
    slurm.add_argument("--cores", type=count(1, 100_000), metavar="N", help="for each process (1, with chips 8)")
    slurm.add_argument("--memory", type=count(1, 10**18), metavar="BYTES", help="of each node (default: Slurm's)")
    slurm.add_argument("--minutes", type=count(1, 10_000_000), metavar="N", help="limit (default: twice the estimate)")
    slurm.add_argument("--grace", type=count(0, 86_400), default=120, metavar="SECONDS", help="to save (%(default)s)")
    slurm.add_argument(
        "--at-a-time", type=count(1, 100_000), default=256, metavar="N", help="jobs at most (%(default)s)"
    )
    add_repeated(slurm, "--set", "KEY=VALUE", "a further option of sbatch")
    slurm.add_argument("--wait", action="store_true", help="until all have ended, and write the run table")
    gke = engines.add_parser("gke", parents=[both], help="JobSets on TPU slices", allow_abbrev=False)
    gke.add_argument("--topology", metavar="CHIP:AxBxC", help="of every training (default: the smallest that holds it)")
    gke.add_argument("--volume", metavar="CLAIM:PATH", help="a volume claim mounted at PATH, if --out is not gs://…")
    gke.add_argument("--namespace", default="default", metavar="NAME", help="(%(default)s)")
    gke.add_argument("--service-account", metavar="NAME", help="of Kubernetes, with access to the bucket")
    gke.add_argument("--queue", metavar="NAME", help="Kueue's local queue")
    gke.add_argument("--spot", action="store_true", help="on spot machines")
    sky = engines.add_parser("sky", parents=[both, gpus], help="managed jobs of SkyPilot", allow_abbrev=False)
    sky.add_argument("--topology", metavar="CHIP:AxBxC", help="for TPUs (default: the smallest that holds it)")
    sky.add_argument("--infra", metavar="CLOUD", help="cloud[/region[/zone]] (default: SkyPilot's choice)")
    sky.add_argument("--again", action="store_true", help="also what SkyPilot has been given and has not ended")
    sky.add_argument("--on-demand", action="store_true", help="no spot machines")
    gke.add_argument("--image", required=True, metavar="NAME", help="with moejax in it (launch/tpu.Dockerfile)")
    sky.add_argument("--image", metavar="docker:NAME", help="with moejax in it (default: install this folder)")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options that exclude each other, or if no config or folder is given."""
    if arguments.print and arguments.submit:
        raise UserError("--print and --submit exclude each other; --print is the default.")
    if getattr(arguments, "wait", False) and not arguments.submit:
        raise UserError("--wait waits for what is handed over; add --submit, or leave it out.")
    check_config_or_resume(arguments, "Nothing to train")
