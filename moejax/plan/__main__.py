"""``python -m moejax.plan``: the process that ``moejax.plan.process.plan`` starts."""

import sys

from moejax.plan.process import main

sys.exit(main())
