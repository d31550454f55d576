"""`python -m rpeg_rt` is `rpeg-rt`, as torchrun wants it."""

import sys

from rpeg_rt.cli import main

if __name__ == "__main__":
    sys.exit(main())
