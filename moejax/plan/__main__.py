"""Run ``python -m moejax.plan PARENT``, the process that ``moejax.plan.process.plan`` starts with its own
process id.
"""

import sys

from moejax.data.workers import end_with

# Importing JAX takes seconds, so this comes first.
end_with(int(sys.argv[1]))

from moejax.plan.process import main  # noqa: E402

sys.exit(main())
