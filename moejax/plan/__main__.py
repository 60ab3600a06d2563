"""``python -m moejax.plan PARENT``: the process that ``moejax.plan.process.plan`` starts, by its parent's number."""

import sys

from moejax.parent_process import end_with

# Before JAX is imported, which takes seconds.
end_with(int(sys.argv[1]))

from moejax.plan.process import main  # noqa: E402

sys.exit(main())
